"""Results files are told the components of the commit that they were measured at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skipqa.claims.shipping import shipped
from tools import name_components


def written(path: Path, **header: object) -> Path:
    path.write_text(json.dumps({**header, "results": {"a": 1}}))
    return path


def test_what_a_commit_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"verifier.safetensors": b"weights", "README.md": b"words"}

    def git(*words: str) -> bytes:
        if words[0] == "ls-tree":
            return "\n".join(f"{name_components.FOLDER}/{name}" for name in files).encode()
        return files[words[1].rpartition("/")[2]]

    monkeypatch.setattr(name_components, "_git", git)
    path = written(tmp_path / "a.json", commit="abc1234+", command="a.py")
    assert name_components.name_components(path) == "names what abc1234 bundles"
    found = json.loads(path.read_text())
    assert found["components"].keys() == {"verifier"}
    assert found["results"] == {"a": 1}
    assert name_components.name_components(path) == "names them already"


@pytest.mark.parametrize(
    "header", [{"command": "a.py"}, {"commit": "abc", "command": "a.py --components mine"}]
)
def test_others_are_left_as_they_are(tmp_path: Path, header: dict[str, str]) -> None:
    path = written(tmp_path / "a.json", **header)
    before = path.read_text()
    assert name_components.name_components(path).startswith("was not measured with")
    assert path.read_text() == before


def test_what_ships_has_a_checksum_each() -> None:
    assert all(len(checksum) == 64 for checksum in shipped().values())
