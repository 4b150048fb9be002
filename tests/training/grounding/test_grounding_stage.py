"""The stage from photos to components, on a tiny world; and what a grounding finds."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import small_world
import tiny_training
import torch
from safetensors.torch import load_file

from skipqa.components import SETTINGS, bundled, change_settings
from skipqa.config import override
from skipqa.nn.grounding import Grounding, GroundingConfig
from skipqa.pipeline import Pipeline
from skipqa.training.grounding import stage
from skipqa.training.grounding.retrieval import (
    RULE,
    SHARPNESSES,
    best_sharpness,
    found_by,
    way,
)
from skipqa.training.grounding.stage import ENOUGH, PART, RETRIEVAL, STAGE, points_better
from skipqa.training.pathway import gather
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, Metrics

SMALL = override(
    STAGE.settings,
    {"train": {"steps": 4, "warmup": 1, "batch": 8, "width": 16, "unboxed": 8}, "workers": 1},
)


@pytest.fixture
def components(tmp_path: Path) -> Path:
    """The bundled ones, but looking at small photos: a drawn one has little to see."""
    folder, shipped = tmp_path / "components", bundled("pocket")
    assert shipped is not None
    shutil.copytree(shipped, folder)
    change_settings(folder / SETTINGS, encode={"scales": [64, 128]})
    return folder


def number(pocket_kb: Path) -> None:
    """Give every question an id and a passage that is gold."""
    for split in ("train", "val"):
        path = pocket_kb / f"{split}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        more = ({"question_id": f"{split}-{n}", "gold": ["index:0"]} for n in range(len(rows)))
        tiny_training.write_lines(path, (a | b for a, b in zip(rows, more, strict=True)))


def test_from_photos_to_components(
    home: Path, data: Path, pocket_kb: Path, components: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Twice, with photos that are decoded in two processes and in this one: the same bits."""
    number(tiny_training.add_crowded(pocket_kb))
    boxes = [{"image": "000000000201.webp", "boxes": [["disk", 0.5, 0.5, 0.2, 0.6]]}]
    tiny_training.write_lines(data / "coco/boxes.jsonl", boxes)
    index = tiny_training.write_index(tmp_path)
    inputs = Inputs(data, pocket_kb, components=components, index=(index,))
    before = {path.name: path.read_bytes() for path in components.glob("*.safetensors")}
    found = []
    for name, cores in (("first", 2), ("second", 1)):
        monkeypatch.setattr(stage, "available_cores", lambda cores=cores: cores)
        metrics = STAGE.run(inputs, SMALL, Run(tmp_path / name))
        assert metrics.keys() == {PART, RETRIEVAL}
        assert metrics[PART]["val"].keys() >= {"crowded", "pocket-kb"}
        assert metrics[RETRIEVAL]["recall"].keys() <= {"crowded", "pocket-kb"}
        path = tmp_path / name / "trained" / "grounding.safetensors"
        found.append(load_file(path))
        assert (tmp_path / name / "reader.safetensors").is_file()  # what it began with
        changed = path.stat().st_mtime_ns
        assert STAGE.run(inputs, SMALL, Run(tmp_path / name)) == metrics
        assert path.stat().st_mtime_ns == changed  # a finished part is not trained again
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert all((components / name).read_bytes() == whole for name, whole in before.items())


def test_untrained_a_grounding_finds_what_the_rule_finds(
    pipeline: Pipeline, photo: Path, tmp_path: Path
) -> None:
    world = small_world.write(tmp_path / "pocket-kb", photo)
    drawn = gather.draw(None, world, {"pocket-kb/train": 3}, seed=1)
    widths, concepts = pipeline.backbone.widths, len(pipeline.backbone.concepts)
    grounding = Grounding(GroundingConfig(widths.vision, concepts, widths.text)).eval()
    rows = [replace(row, gold_ids=row.gold_ids or ("none",)) for row in drawn]
    for hit in found_by(pipeline.with_components(grounding=grounding), rows):
        assert hit[way(0.0)] == hit[RULE]


def test_the_best_sharpness_is_the_smallest_of_equals() -> None:
    ways = {RULE: 0.5} | {way(sharpness): 0.5 for sharpness in SHARPNESSES}
    same = {"crowded": dict(ways), "pocket-kb": dict(ways)}
    assert best_sharpness(same) == 0.0
    same["crowded"][way(1.0)] = 0.6
    assert best_sharpness(same) == 1.0
    same["pocket-kb"][way(1.0)] = 0.45  # what one source gains, the other may not lose
    assert best_sharpness(same) == 0.0
    same["crowded"][way(0.5)] = 0.55  # less, but at nobody's cost
    assert best_sharpness(same) == 0.5
    none = {"crowded": ways | {RULE: 0.9}}  # with nothing as good as the rule, the best of all
    none["crowded"][way(0.25)] = 0.6
    assert best_sharpness(none) == 0.25


def test_it_has_to_point_better_in_every_source() -> None:
    def compared(kept: float, questions: int = ENOUGH) -> Metrics:
        trained, rule = {"points": 0.5, "kept": kept}, {"points": 0.4, "kept": 0.4}
        return {"questions": questions, "trained": trained, "rule": rule}

    assert points_better({"crowded": compared(0.4)})
    assert not points_better({"crowded": compared(0.4), "coco": compared(0.3)})
    assert points_better({"crowded": compared(0.4), "okvqa": compared(0.3, ENOUGH - 1)})
