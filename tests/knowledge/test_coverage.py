"""How many passages are about a name: counted as an exhaustive reading counts them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.files import write_jsonl
from skipqa.knowledge import Library
from skipqa.knowledge.coverage import Coverage, name_key, title_keys
from skipqa.knowledge.index import Index
from skipqa.knowledge.index.build import build
from skipqa.knowledge.sources import open_source
from skipqa.knowledge.sparse_encoder import LexicalEncoder

TITLES = [
    "Vizsla",
    "vizsla, Hungarian pointer",
    "Café: history",
    "cafe",
    "Luxembourg: Government > Flag",
    "",
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("titles")
    rows = [{"id": str(n), "title": t, "text": f"text {n}."} for n, t in enumerate(TITLES)]
    write_jsonl(folder / "notes.jsonl", rows)
    build(folder / "index", [open_source(str(folder / "notes.jsonl"))], LexicalEncoder.default())
    return folder / "index"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKIPQA_HOME", str(tmp_path))
    return tmp_path / "titles"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("vizsla", 2),
        ("VIZSLA", 2),
        ("hungarian-pointer", 1),
        ("café", 2),
        ("Luxembourg", 1),
        ("Government", 0),
        ("", 0),
        ("?!", 0),
    ],
)
def test_titles_are_counted_by_name(index: Path, cache: Path, name: str, count: int) -> None:
    assert Library.open([index]).coverage.passages(name) == count


def test_a_thing_is_covered_by_the_best_of_its_names(index: Path, cache: Path) -> None:
    coverage = Library.open([index]).coverage
    assert coverage.of_thing(["nobody", "Hungarian pointer", "vizsla"]) == 2
    assert coverage.of_thing([]) == 0


def test_titles_are_read_once(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Coverage.of([Index.open(index)])
    monkeypatch.setattr("skipqa.knowledge.coverage._titles", lambda _: pytest.fail("read again"))
    again = Coverage.of([Index.open(index)])
    assert first.passages("vizsla") == again.passages("vizsla") == 2


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_damaged_counts_are_made_again(index: Path, cache: Path, damage: bytes | None) -> None:
    Coverage.of([Index.open(index)])
    (counted,) = cache.glob("*/hashes.npy")
    if damage is None:
        counted.unlink()
    else:
        counted.write_bytes(damage)
    assert Coverage.of([Index.open(index)]).passages("vizsla") == 2


@given(st.text(max_size=30))
def test_a_key_is_its_own_key(name: str) -> None:
    assert name_key(name_key(name)) == name_key(name)
    assert name_key(name.upper()) == name_key(name_key(name.upper()))


@given(st.text(max_size=60))
def test_keys_of_a_title_are_never_empty(title: str) -> None:
    assert all(key and key == key.strip() for key in title_keys(title))
