"""What a reader is trained on: fewer questions if asked for, honest words, what is asked about."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import tiny_training
import torch

from skipqa.nn.tagger import TaggerConfig
from skipqa.training.reader.seeing import cross_fitted, things_asked_about, thinned
from skipqa.training.reader.settings import ReaderSettings
from skipqa.training.run import Run
from skipqa.training.stage1 import mixture
from skipqa.training.stage1.inputs import PERCEPTUAL_RATIO, StageInputs, group_rows
from skipqa.training.stage1.photos import CELLS, WINDOWS, PhotoFeatures
from skipqa.training.stage1.pocket_kb import Thing
from skipqa.training.stage1.tagger import TagProbs

WIDTH = 8


def test_thinned_it_has_all_of_okvqa_some_of_the_rest_and_no_validation(
    data: Path, pocket_kb: Path
) -> None:
    mixed = mixture.read(data, tiny_training.add_crowded(pocket_kb))
    mixed.examples += 6 * [mixed.examples[row] for row in mixed.select("okvqa", "held-out")]
    some = thinned(mixed, ReaderSettings(questions=5, scored=2))
    count = Counter((one.source, one.split) for one in some.examples)
    whole = Counter((one.source, one.split) for one in mixed.examples)
    assert count["okvqa", "train"] == whole["okvqa", "train"]
    assert count["coco", "train"] == count["crowded", "train"] == 5
    assert {split for _, split in count} == {"train", "held-out", "val"}
    assert {source for source, split in count if split == "val"} == {"unseen"}
    held_out = whole["okvqa", "held-out"]
    chosen_by = {"okvqa": held_out, "coco": held_out // PERCEPTUAL_RATIO}
    for (source, split), number in count.items():
        if split != "train":
            assert number == chosen_by[source] if source in chosen_by else number <= 2
    assert len(some.photos) < len(mixed.photos)
    assert thinned(mixed, ReaderSettings()) is mixed


def test_what_is_asked_about_is_the_thing_in_its_box() -> None:
    boxes = ((0.0, 0.0, 0.4, 0.4), (0.5, 0.5, 0.9, 0.9))
    things = tuple(Thing(kind, name, box) for kind, name, box in zip(*_names(), boxes, strict=True))
    ask = tiny_training.make_example
    examples = [
        replace(ask(0, "?", {"x": 1.0}, "crowded", "train"), box=boxes[1]),
        replace(ask(0, "?", {"x": 1.0}, "crowded", "train"), box=(0.01, 0.0, 0.4, 0.39)),
        ask(1, "?", {"x": 1.0}, "pocket-kb", "train"),
        replace(ask(2, "?", {"x": 1.0}, "okvqa", "train"), thing="bear"),
        ask(2, "?", {"x": 1.0}, "okvqa", "train"),
    ]
    mixed = mixture.Mixture(examples, things={0: things, 1: (Thing("cat", "siamese"),)})
    found = things_asked_about(mixed)
    assert found == {0: "flag of peru", 1: "poodle", 2: "siamese", 3: "bear"}


def _names() -> tuple[tuple[str, ...], tuple[str, ...]]:
    return ("dog", "flag"), ("poodle", "peru")


def test_a_photos_words_come_from_a_tagger_that_never_saw_it(data: Path, tmp_path: Path) -> None:
    """Labels that nothing in the features explains are told by heart by a tagger that was trained
    on them, and no better than chance by the others; what it was not told stays."""
    mixed = mixture.read(data)
    mixed.labels = {photo: (str(photo % 2),) for photo in mixed.labels}
    torch.manual_seed(0)
    count = len(mixed.photos)
    features = PhotoFeatures(
        views=torch.randn(1, count, CELLS, WIDTH),
        overview=torch.zeros(count, 2),
        windows=torch.randn(count, WINDOWS, 2 * WIDTH),
        crops=torch.zeros(0, count, 2 * WIDTH),
        crop_shows=torch.zeros(0, count, 1, dtype=torch.int8),
    )
    config = TaggerConfig(("0", "1", "peru"), ("", "", "flag"), width=WIDTH, hidden=16)
    known = torch.full((count, 3), 0.25)
    for photo, (label,) in mixed.labels.items():
        known[photo, int(label)] = 0.99
    probs = TagProbs(known.clone(), known.clone())
    groups, networks = group_rows(mixed), tiny_training.networks()
    settings = ReaderSettings().as_stage1()
    run = Run(tmp_path / "run", seed=5)
    inputs = StageInputs(mixed, groups, networks, settings, run, torch.device("cpu"))
    found = cross_fitted(inputs, features, config, probs)
    rows = sorted(mixed.labels)
    labelled = torch.tensor([int(mixed.labels[row][0]) for row in rows])
    told = found.low_res[rows].gather(1, labelled[:, None])
    assert float(told.mean()) < 0.8
    assert (told < 0.5).any()
    assert bool((found.low_res[:, 2] == 0.25).all())
    others = [photo for photo in range(count) if photo not in mixed.labels]
    torch.testing.assert_close(found.high_res[others], known[others])
