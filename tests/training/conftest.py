"""Drawn photos and questions to train on, as data folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_training


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tiny_training.write_data(tmp_path / "data")


@pytest.fixture
def pocket_kb(tmp_path: Path) -> Path:
    return tiny_training.write_pocket_kb(tmp_path / "pocket-kb")
