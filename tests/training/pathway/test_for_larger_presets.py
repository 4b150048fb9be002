"""Stages that know the backbone's interface alone train for another preset: a tiny LLaVA."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_world
import tiny_models
import tiny_training

from skipqa.config import PRESETS, override
from skipqa.nn import checkpoint
from skipqa.training.run import Run
from skipqa.training.stage import Inputs
from skipqa.training.stages import train

PRESET = "ablation-13b"
TINY = {"encode": {"scales": [56]}, "budget": {"tokens": 6}, "regions": {"proposals": "clusters"}}


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("stage", "parts"), [("stage2", {"saliency", "keep_head"}), ("stage3", {"pathways"})]
)
def test_with_nothing_to_begin_with(
    stage: str, parts: set[str], tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("SKIPQA_WEIGHTS", str(tiny_models.write_ablation(tmp_path / "weights")))
    monkeypatch.setitem(PRESETS, PRESET, override(PRESETS[PRESET], TINY))
    pocket_kb = small_world.write(tmp_path / "pocket-kb", photo)
    data = tiny_training.write_data(tmp_path / "data")
    inputs = Inputs(data, pocket_kb, index=(pocket_kb / "index",), preset=PRESET)
    run = Run(tmp_path / stage)
    metrics = train(stage, inputs, run, ["train.steps=3", "records.workers=1"])
    assert metrics.keys() == parts
    path = run.folder / "trained" / "saliency.safetensors"
    assert checkpoint.read_header(path).preset == PRESET
