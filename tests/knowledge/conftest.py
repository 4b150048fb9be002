"""A small corpus, and an index over it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skipqa.knowledge.index import Index, build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder

ANIMALS = ["cat", "dog", "horse", "eagle", "salmon", "frog", "ant", "whale", "tiger", "goat"]
PLACES = ["france", "japan", "kenya", "peru", "norway", "india", "egypt", "canada"]


@pytest.fixture(scope="session")
def encoder() -> LexicalEncoder:
    return LexicalEncoder.default()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "animals.jsonl"
    with path.open("w") as file:
        for i in range(400):
            animal, place = ANIMALS[i % 10], PLACES[i // 10 % 8]
            text = f"The {animal} of {place} number {i} eats fish and sleeps {i % 7} hours."
            file.write(json.dumps({"id": i, "title": f"{animal} in {place}", "text": text}) + "\n")
    return path


@pytest.fixture(scope="session")
def built(corpus: Path, encoder: LexicalEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index") / "animals"
    build(folder, [JsonLines(corpus)], encoder)
    return folder


@pytest.fixture
def index(built: Path) -> Index:
    return Index.open(built)
