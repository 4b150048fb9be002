"""A scripted model behind HTTP, a small library, and no key from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from scripted_vlm import Asked, ScriptedVLM, serving

from skipqa.knowledge import Library
from skipqa.knowledge.index import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder

ARTICLES = {
    "Espresso": "Espresso is brewed by forcing hot water under pressure through ground coffee.",
    "Teapot": "A teapot is a vessel in which tea leaves steep in boiling water.",
    "Saucer": "A saucer is a small dish that is set under a cup.",
    "Beagle": "The beagle is a small hound that was bred in England for hunting hare.",
    "Oak": "Oaks are trees that bear acorns and may live for a thousand years.",
    "Violin": "The violin has four strings, which are tuned in fifths.",
}


@pytest.fixture(autouse=True)
def no_key_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SKIPQA_ENDPOINT_KEY", "SKIPQA_ENDPOINT", "SKIPQA_ENDPOINT_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def vlm() -> Iterator[ScriptedVLM]:
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def index_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompted")
    rows = [{"id": t, "title": t, "text": text} for t, text in ARTICLES.items()]
    (folder / "articles.jsonl").write_text("\n".join(map(json.dumps, rows)))
    build(folder / "articles", [JsonLines(folder / "articles.jsonl")], LexicalEncoder.default())
    return folder / "articles"


@pytest.fixture(scope="session")
def library(index_folder: Path) -> Library:
    return Library.open([index_folder])


@pytest.fixture(scope="session")
def cup() -> Image.Image:
    """A brown disk in the right half of a white picture of 400 x 200."""
    image = Image.new("RGB", (400, 200), "white")
    ImageDraw.Draw(image).ellipse((250, 50, 350, 150), fill=(90, 50, 20))
    return image


@pytest.fixture
def cup_file(cup: Image.Image, tmp_path: Path) -> Path:
    cup.save(tmp_path / "cup.png")
    return tmp_path / "cup.png"


REGIONS = {
    "regions": [
        {"name": "saucer", "box": [0.0, 0.5, 0.5, 1.0], "salience": 0.3},
        {"name": "espresso cup", "box": [0.625, 0.25, 0.875, 0.75], "salience": 0.9},
    ]
}


def relevance(asked: Asked) -> str:
    """What an attentive judge says: pressure is the point."""
    lines = [line for line in asked.text.splitlines() if line.startswith("[")]
    scores = [
        {"passage": n, "relevance": 0.9 if "pressure" in line else 0.1}
        for n, line in enumerate(lines, 1)
    ]
    return json.dumps({"scores": scores})


@pytest.fixture
def medium(vlm: ScriptedVLM) -> ScriptedVLM:
    """A model that does everything right."""
    vlm.script = {
        "draft": '{"answer": "with water", "difficulty": "MEDIUM"}',
        "regions": f"```json\n{json.dumps(REGIONS)}\n```",
        "query": lambda asked: "espresso coffee" if "espresso" in asked.text else "saucer dish",
        "queries": '{"queries": [{"region": 1, "query": "espresso coffee"}, {"region": 2}]}',
        "relevance": relevance,
        "answer": "[1] says it.\n<passages>1</passages>\n<answer>under pressure</answer>",
    }
    return vlm
