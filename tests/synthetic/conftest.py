"""A scripted model behind HTTP, three photos, and pairs of what they show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from scripted_vlm import Asked, ScriptedVLM, serving

TEXT = "Espresso is brewed by forcing hot water under pressure through ground coffee."
WRITTEN = {"question": "How is this drink brewed?", "answer": "under pressure"}


@pytest.fixture(autouse=True)
def no_key_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SKIPQA_ENDPOINT_KEY", "SKIPQA_ENDPOINT", "SKIPQA_ENDPOINT_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for name, colour in (("a.png", "brown"), ("b.jpg", "white"), ("more/c.webp", "green")):
        Image.new("RGB", (60, 40), colour).save(folder / name)
    (folder / "notes.txt").write_text("no photo")
    return folder


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Two of a.png, one of b.jpg, none of c.webp."""
    row: dict[str, Any] = {"image": "a.png", "entity": "espresso", "passage": "p1", "text": TEXT}
    tea = {"entity": "tea", "passage": "p2", "text": "Tea leaves steep in boiling water."}
    rows = [row, row | tea, row | {"image": "b.jpg"}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "pairs.jsonl"


@pytest.fixture
def vlm() -> Iterator[ScriptedVLM]:
    """Writes the same question about everything, and finds everything in order."""
    with serving() as server:
        server.script = {
            "question": json.dumps(WRITTEN),
            "grammatical": '{"grammatical": 0.9}',
            "depicted": lambda asked: json.dumps({"depicted": _sees(asked)}),
        }
        yield server


def _sees(asked: Asked) -> float:
    assert asked.image is not None
    assert "pressure" not in asked.text, "asked without the passage"
    return 0.8
