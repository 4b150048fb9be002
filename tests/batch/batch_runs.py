"""Shared by the tests that run `skipqa batch`: images, the command, what it wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw
from pyarrow import parquet

from skipqa.pipeline import Pipeline

COMMAND = (sys.executable, "-c", "from skipqa.cli.main import run; run()", "batch")


def draw_images(folder: Path) -> Path:
    for name, shape in (("disc.png", "ellipse"), ("box.png", "rectangle")):
        drawn = Image.new("RGB", (160, 120), (30, 90, 160))
        getattr(ImageDraw.Draw(drawn), shape)((40, 20, 120, 100), fill=(230, 180, 40))
        drawn.save(folder / name)
    (folder / "broken.png").write_bytes((folder / "disc.png").read_bytes()[:60])
    return folder


def rows_of(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in sorted(out.rglob("*-*-*.*")):
        if path.suffix == ".parquet":
            rows += parquet.read_table(path).to_pylist()
        elif path.suffix == ".jsonl":
            rows += map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return rows


def check_same(row: dict[str, Any], pipeline: Pipeline, image: Path, question: str) -> None:
    """A row holds what `pipeline.answer` gives."""
    one = pipeline.answer(image, question)
    assert row["error"] is None
    assert (row["answer"], row["route"], row["grounded"]) == (one.text, one.route, one.grounded)
    assert row["confidence"] == pytest.approx(one.confidence, abs=1e-3)
    assert row["flops"] == pytest.approx(one.trace.flops, rel=1e-3)
    assert row["latency_ms"] > 0
    found = [(e["id"], e["title"], e["score"]) for e in row["evidence"]]
    assert found == [(e.id, e.title, pytest.approx(e.score, abs=1e-3)) for e in one.evidence]
