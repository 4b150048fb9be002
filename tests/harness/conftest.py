from __future__ import annotations

from pathlib import Path

import pytest
from official_files import write_all


@pytest.fixture(scope="session")
def official_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("official") / "data"
    write_all(folder)
    return folder


@pytest.fixture
def data(official_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKIPQA_DATA", str(official_data))
    return official_data
