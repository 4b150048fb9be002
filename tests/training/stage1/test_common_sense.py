"""Questions made from ConceptNet: one right answer each, of photos that may be trained on."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_training
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skipqa.data.held_out import is_held_out
from skipqa.knowledge import Library
from skipqa.training.example import IN_FACT, TrainExample
from skipqa.training.retrieval.about import IN_IMAGE
from skipqa.training.run import Run
from skipqa.training.stage import Inputs
from skipqa.training.stage1 import common_sense, mixture, reader
from skipqa.training.stage1.backbone import BackboneStage
from skipqa.training.stage1.common_sense import BY_KIND, BY_RELATION, KIND_OF, MAX_ANSWERS, PLAIN
from skipqa.training.stage1.drafter import TRAIN_GROUPS
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.pocket_kb import HeldOut
from skipqa.training.stage1.reader import Prompts, ReaderInputs, ReaderTrainer, ReaderTraining
from skipqa.training.stage1.statements import read

NOTHING_HELD_OUT = HeldOut({"coco": frozenset(), "entities": frozenset()})
SAID = (
    ("oven", "An oven is used for cooking. You can find an oven in a kitchen. An oven can roast."),
    ("microwave", "A microwave is used for cooking food. A microwave has a timer."),
    ("sink", "You can find a sink in a kitchen. A sink is used for washing a dish."),
    ("dog", "A dog can bark. A dog has a tail. A dog has fur. You can find a dog in a kennel."),
    ("cat", "A cat has a tail. A cat has a whisker. You can find a cat in a house."),
    ("table", "A table is used for eating. A table is made of wood."),
)
LABELS = ("oven", "microwave", "sink", "dog", "cat", "dining table", "surfboard")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("knowledge")
    return Library.open([tiny_training.write_passages(folder / "conceptnet", SAID)])


def shown(*labels: tuple[str, ...]) -> Mixture:
    photos = {(Path("photos.zip"), f"{row}.webp"): row for row in range(len(labels))}
    return Mixture(photos=photos, labels=dict(enumerate(labels)))


def asked(mixed: Mixture, library: Library, most: int = 1_000, seed: int = 0) -> list[TrainExample]:
    return common_sense.questions(mixed, library, NOTHING_HELD_OUT, most, seed)


photos_shown = st.lists(
    st.lists(st.sampled_from(LABELS), min_size=1, unique=True).map(tuple), min_size=1, max_size=30
)


@settings(deadline=None, max_examples=40)
@given(photos_shown, st.integers(0, 40), st.integers(0, 5))
def test_questions_are_about_what_the_photo_shows(
    library: Library, labels: list[tuple[str, ...]], most: int, seed: int
) -> None:
    mixed = shown(*labels)
    found = asked(mixed, library, most, seed)
    assert found == asked(mixed, library, most, seed)
    assert len(found) <= most
    assert all(n <= common_sense.PER_PHOTO for n in Counter(e.photo for e in found).values())
    assert len({example.id for example in found}) == len(found)
    said = read(library, LABELS)
    for example in found:
        here = set(mixed.labels[example.photo])
        assert (example.source, example.split) == ("common", "train")
        assert example.image == f"{example.photo}.webp"
        assert "{" not in example.question
        assert set(example.answers.values()) == {1.0}
        assert 0 < len(example.answers) <= MAX_ANSWERS
        assert example.fact
        assert example.needs_knowledge == (example.type == IN_FACT)
        if example.type == IN_IMAGE:
            (label,) = here & set(example.answers)
            by_sentence = {one.sentence: one for one in said.of_label[label]}
            assert said.same_of[by_sentence[example.fact].predicate] & here == {label}


def test_no_other_thing_in_the_photo_is_said_to_be_so(library: Library) -> None:
    """A microwave cooks, too, and a sink is in the kitchen."""
    facts = {e.fact for e in asked(shown(*[LABELS[:3]] * 40), library) if e.type == IN_IMAGE}
    assert facts == {"An oven can roast.", "A microwave has a timer."} | {
        "A microwave is used for cooking food.",
        "A sink is used for washing a dish.",
    }
    alone = {e.fact for e in asked(shown(*[("oven",)] * 40), library) if e.type == IN_IMAGE}
    assert "An oven is used for cooking." in alone


def test_two_thirds_ask_for_the_thing(library: Library) -> None:
    types = Counter(e.type for e in asked(shown(*[("dog",), ("dining table",)] * 60), library))
    assert types == {IN_IMAGE: 80, IN_FACT: 40}


def test_all_that_is_said_in_one_way_is_right(library: Library) -> None:
    found = [e for e in asked(shown(*[("dog",)] * 90), library) if e.type == IN_FACT]
    (having,) = {tuple(e.answers) for e in found if "has" in str(e.fact)}
    assert having == ("tail", "fur")
    assert {e.fact for e in found if "has" in str(e.fact)} == {"A dog has a tail. A dog has fur."}
    questions = {e.question for e in found}
    assert any("animal" in question for question in questions)
    assert not any("kept" in question for question in questions)
    both = [e for e in asked(shown(*[("dog", "cat")] * 90), library) if e.type == IN_FACT]
    assert not any("animal" in e.question for e in both)


def test_a_thing_is_called_what_people_call_it(library: Library) -> None:
    found = asked(shown(*[("dining table",)] * 30), library)
    named = {tuple(e.answers) for e in found if e.type == IN_IMAGE}
    assert named == {("dining table", "table")}
    assert not any("dining table" in e.question for e in found)


def test_rare_labels_are_not_crowded_out(library: Library) -> None:
    mixed = shown(*[("dog",)] * 200, *[("oven",)] * 10)
    found = asked(mixed, library, most=20)
    assert Counter(mixed.labels[e.photo] for e in found) == {("dog",): 10, ("oven",): 10}


def test_a_seed_decides(library: Library) -> None:
    mixed = shown(*[("dog",), ("oven",)] * 20)
    assert asked(mixed, library, seed=1) != asked(mixed, library, seed=2)


def test_there_may_be_none(library: Library, tmp_path: Path) -> None:
    mixed = shown(("dog",), ("oven",))
    assert asked(mixed, library, most=0) == []
    assert asked(Mixture(), library) == []
    assert asked(shown(("surfboard",)), library) == []
    other = Library.open([tiny_training.write_index(tmp_path / "colours")])
    assert asked(mixed, other) == []


def test_unseen_entities_are_no_answers(library: Library) -> None:
    held_out = replace(NOTHING_HELD_OUT, names=frozenset(("dog", "fur", "whisker")))
    mixed = shown(*[("dog",), ("cat",)] * 30)
    found = common_sense.questions(mixed, library, held_out, 1_000, 0)
    assert found
    assert {mixed.labels[e.photo] for e in found} == {("cat",)}
    assert all(held_out.names.isdisjoint(e.answers) for e in found)


def test_held_out_photos_are_not_asked_about(data: Path, pocket_kb: Path, tmp_path: Path) -> None:
    """Neither those of other data sets nor those of Pocket-KB's `val`."""
    said = [("disk", "A disk can roll."), ("red", "A red can glow.")]
    index = tiny_training.write_passages(tmp_path / "conceptnet", said)
    mixed, held_out = mixture.read(data, pocket_kb), HeldOut.of(pocket_kb)
    found = common_sense.questions(mixed, Library.open([index]), held_out, 1_000, 0)
    images = {example.image for example in found}
    assert images
    assert not any(map(is_held_out, images))
    assert images.isdisjoint(held_out.photos["coco"])
    assert all(
        (e.image, e.photo) in {(n, row) for (_, n), row in mixed.photos.items()} for e in found
    )


def test_wordings_have_their_blanks() -> None:
    assert all("{said}" in wording for wording in (*PLAIN, *BY_KIND))
    assert all("{kind}" in wording for wording in BY_KIND)
    assert all("{other}" in wording for some in BY_RELATION.values() for wording in some)
    assert all(wording[-1] in "?." for wording in (*PLAIN, *BY_KIND))
    assert not set(KIND_OF) & set(KIND_OF.values())


def test_the_reader_meets_them_once_per_epoch(tmp_path: Path) -> None:
    example = tiny_training.make_example(0, "?", {"red": 1.0}, "common", "train")
    groups = dict.fromkeys(TRAIN_GROUPS, torch.zeros(0, dtype=torch.long))
    groups |= {"okvqa/train": torch.arange(4), "coco/train": torch.arange(4)}
    steps: dict[str, int] = {}

    def progress(what: str, _: int, total: int, __: float | None) -> None:
        steps[what] = total

    def steps_with(common: int) -> dict[str, int]:
        rows = groups | {"common/train": torch.arange(common)}
        inputs = ReaderInputs(Prompts(["?"] * 8, tiny_training.tokenizer()), [example] * 8, rows)
        training = ReaderTraining(epochs=1.0, focus_epochs=1.0, batch=1, knowledge_times=3)
        run = Run(tmp_path / str(common), progress=progress)
        reader.train(tiny_training.decoder(), ReaderTrainer(inputs, run, training), rank=2)
        return dict(steps)

    assert steps_with(0) == {"reader": 16, "reader/focus": 12}
    assert steps_with(8) == {"reader": 24, "reader/focus": 20}


def test_stage1_trains_on_them(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run knows that it did, and how many there were."""
    tiny_training.shrink_pictures(monkeypatch)
    said = [("disk", "A disk can roll. A disk is made of wood."), ("red", "A red can glow.")]
    index = tiny_training.write_passages(tmp_path / "conceptnet", said)
    stage = BackboneStage("stage1", tiny_training.SETTINGS, lambda _: tiny_training.networks())
    inputs, run = Inputs(data, index=(index,)), Run(tmp_path / "out", seed=5)
    metrics = stage.run(inputs, replace(tiny_training.SETTINGS, common=9, notes=2), run)
    assert metrics.keys() == {"encoder", "tagger", "drafter", "reader"}
    assert not any(name.startswith("common") for name in metrics["reader"]["joint"])
    claim = json.loads((run.folder / "config.json").read_text())
    without = mixture.read(data)
    assert claim["examples"] == len(without.examples) + 9 + 2
    assert claim["data"] != without.fingerprint()
