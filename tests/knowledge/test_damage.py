"""`verify` finds a flipped bit anywhere, and `search` raises at most a UserError."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from skipqa.errors import UserError
from skipqa.knowledge.index import Index, add, delete, verify
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.types import SparseVector

ENGINES = ("local", "exact", "compiled")


def files(folder: Path) -> list[Path]:
    ignored = {".lock"}
    return [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in ignored]


@pytest.fixture(scope="module")
def changed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with two segments and deletions, so that every kind of file is there."""
    folder = tmp_path_factory.mktemp("damage") / "i"
    shutil.copytree(built, folder)
    more = folder.parent / "more.jsonl"
    more.write_text('{"text": "a giraffe in france"}\n{"text": "a lion in peru"}\n')
    add(folder, [JsonLines(more)])
    delete(folder, ["animals:5", "more:2"])
    return folder


def use_everything(folder: Path, engine: str, queries: list[SparseVector]) -> None:
    index = Index.open(f"{engine}:{folder}")
    for hit in index.search(queries, 8)[0]:
        index.passage(hit.row)
    index.row_of("animals:7")
    index.row_of("more:1")


def use_encoder_too(folder: Path, queries: list[SparseVector]) -> None:
    use_everything(folder, "local", queries)
    Index.open(folder).encoder.encode_query("dog")


@pytest.fixture(scope="module")
def queries(changed: Path) -> list[SparseVector]:
    encode = Index.open(changed).encoder.encode_query
    return [encode("dog horse france fish hours"), encode("giraffe")]


def test_flipped_bytes(changed: Path, queries: list[SparseVector]) -> None:
    engines = ENGINES if _has_numba() else ENGINES[:2]
    rng = np.random.default_rng(7)
    assert verify(changed) == []
    for path in files(changed):
        original = path.read_bytes()
        size = len(original)
        for place in sorted({0, size - 1, *rng.integers(0, size, 2).tolist()} if size else ()):
            damaged = bytearray(original)
            damaged[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(bytes(damaged))
            try:
                faults = verify(changed)
            except UserError as error:
                faults = [str(error)]
            assert faults, f"{path.name}: a flipped bit at {place} went unseen"
            for engine in engines:
                with suppress(UserError):  # anything else would be a crash
                    use_everything(changed, engine, queries)
        path.write_bytes(original)
    assert verify(changed) == []


def test_missing_and_short_files(changed: Path, queries: list[SparseVector]) -> None:
    for path in files(changed):
        original = path.read_bytes()
        for damage in ("missing", "short"):
            if damage == "missing":
                path.unlink()
            else:
                path.write_bytes(original[:-1] if original else b"x")
            with pytest.raises(UserError):
                use_encoder_too(changed, queries)
            path.write_bytes(original)
    use_everything(changed, "local", queries)


def _has_numba() -> bool:
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True
