"""Questions that only made-up notes answer."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from skipqa.stages.prompts import trained_prompt
from skipqa.training.stage1 import notes
from skipqa.training.stage1.mixture import Mixture


@given(st.integers(0, 100_000))
def test_a_note_states_the_answer_and_names_the_thing(seed: int) -> None:
    note, question, answer = notes.write("kite", Random(seed))
    assert answer in note
    assert "kite" in note
    assert not re.search(r"[{}]", note + question + answer)
    assert answer.lower() not in question.lower()
    assert answer.lower() in trained_prompt([note], [], question).partition("Question:")[0]


def test_most_notes_say_more_than_what_is_asked() -> None:
    """Facts of their own: the answer stands in one sentence."""
    written = [notes.write("kite", Random(seed)) for seed in range(200)]
    facts = [len(re.split(r"(?<=\.) (?=[A-Z])", note)) for note, _, _ in written]
    assert set(facts) == {1, 2, 3}
    assert sum(count > 1 for count in facts) > 100
    once = sum(note.count(answer) == 1 for note, _, answer in written)
    assert once > 190  # a short name may be part of a longer one


def test_labels_take_turns() -> None:
    photos = {(Path("z"), str(row)): row for row in range(6)}
    labels = dict.fromkeys(range(5), ("person",)) | {5: ("kite",)}
    mixture = Mixture(photos=photos, labels=labels)
    found = notes.questions(mixture, "common", 4, seed=1)
    assert [one.photo == 5 for one in found] == [True, False, False, False]
    assert len({one.photo for one in found}) == 4
    assert all(one.needs_knowledge and one.split == "train" for one in found)
    assert found == notes.questions(mixture, "common", 4, seed=1)
    assert found != notes.questions(mixture, "common", 4, seed=2)
    assert len(notes.questions(mixture, "common", 100, seed=1)) == 6
    assert notes.questions(Mixture(), "common", 4, seed=1) == []
