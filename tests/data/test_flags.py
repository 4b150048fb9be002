"""Flags come whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from skipqa.data import flags
from skipqa.errors import UserError


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry in a folder, with an archive of one flag."""
    monkeypatch.setenv("SKIPQA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", (tmp_path / "registry").as_uri())
    archive = tmp_path / "registry" / flags.PACKAGE / "-" / f"{flags.PACKAGE}-{flags.VERSION}.tgz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as members:
        for name in ("png250px/fr.png", "png1000px/fr.png", "package.json"):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(name)
            members.addfile(member, BytesIO(name.encode()))
    monkeypatch.setattr(flags, "SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    return archive


def test_only_the_flags_are_unpacked(registry: Path) -> None:
    folder = flags.fetch()
    assert [path.name for path in folder.iterdir()] == ["fr.png"]
    assert (folder / "fr.png").read_text() == "png250px/fr.png"
    registry.unlink()
    assert flags.fetch() == folder  # from the cache


def test_other_bytes_are_refused(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "SHA256", "0" * 64)
    with pytest.raises(UserError, match="fails its sha256 check"):
        flags.fetch()


def test_no_registry_is_one_line(registry: Path) -> None:
    registry.unlink()
    with pytest.raises(UserError, match="could not download") as error:
        flags.fetch()
    assert "\n" not in str(error.value)
