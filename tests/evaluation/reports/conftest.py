"""Runs to report on, made up in a moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import MakeRun, make_run


@pytest.fixture
def made(tmp_path: Path) -> MakeRun:
    """A run in the test's folder: `made("a", "skip", 0.5, …)`."""
    return lambda name, *args, **options: make_run(tmp_path / name, *args, **options)
