"""Words that people use of photos."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_training import make_example

from skipqa import assets
from skipqa.training.example import TrainExample
from skipqa.training.stage1 import tagger
from skipqa.training.stage1.mentioned import LEAST, Mentioned, mentioned
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.tagger import UNKNOWN
from skipqa.wordnet import Nouns


@pytest.fixture(scope="module")
def nouns() -> Nouns:
    return Nouns(assets.fetch(assets.WORDNET))


def asked(question: str, answer: str = "yes", **about: str) -> list[TrainExample]:
    """Of as many photos as a word needs."""
    given = {"source": "coco", "split": "train"} | about
    return [make_example(row, question, {answer: 1.0}, **given) for row in range(LEAST)]


def words(examples: list[TrainExample], nouns: Nouns) -> set[str]:
    return set(mentioned(examples, ["dog"], nouns).photos)


def test_questions_presuppose_what_they_say(nouns: Nouns) -> None:
    assert words(asked("What is on the beach?", "towels"), nouns) == {"beach", "towel"}
    assert words(asked("Is this a beach?"), nouns) == set()
    assert words(asked("What's in the living room?", "0"), nouns) == {"living room", "room"}


def test_only_what_can_be_seen_and_is_no_label_yet(nouns: Nouns) -> None:
    assert words(asked("What kind of dogs have democracy?", "none"), nouns) == set()


def test_an_answer_counts_where_the_image_gives_it(nouns: Nouns) -> None:
    assert words(asked("Where?", "kitchen"), nouns) == {"kitchen"}
    assert words(asked("Where?", "kitchen", source="okvqa"), nouns) == set()


def test_rare_words_and_other_splits_are_left_out(nouns: Nouns) -> None:
    examples = asked("What is on the beach?", "0")
    assert words(examples[1:], nouns) == set()
    assert words(asked("What is on the beach?", "0", split="held-out"), nouns) == set()
    found = mentioned(examples, [], nouns)
    assert found.photos["beach"] == found.asked_about == frozenset(range(LEAST))


def test_labels() -> None:
    """A word is absent from a photo that was asked about without it, and unknown of others."""
    photos = {(Path("z"), str(row)): row for row in range(3)}
    mixture = Mixture(photos=photos, labels={0: ("cup",), 1: ("cup",)})
    found = tagger.targets(mixture, Mentioned({"beach": frozenset({1})}, frozenset({0, 1})))
    assert found.names == ("cup", "beach")
    assert found.labels.tolist() == [[1, 0], [1, 1], [UNKNOWN, UNKNOWN]]
    assert found.kinds == ("", "")
