"""The drawn world, built once to be read, and its parts to be spoiled."""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn_world import PICTURES, SEED, World, make_data, make_knowledge

from skipqa.data.pocket_kb.build import Knowledge, build


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_data(tmp_path / "data")


@pytest.fixture
def knowledge(tmp_path: Path) -> Knowledge:
    return make_knowledge(tmp_path / "flags")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Built once, and only read."""
    folder = tmp_path_factory.mktemp("world")
    data, knowledge = make_data(folder / "data"), make_knowledge(folder / "flags")
    build(data, folder / "built", SEED, knowledge, crowded=PICTURES)
    return World(data, knowledge, folder / "built")
