"""The cache: kept, expired, shared by processes, and never in the way."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.knowledge.on_demand.cache import DAY, FOUND_FOR, UNKNOWN_FOR, Cache, _read, _written
from skipqa.knowledge.on_demand.source import Told
from skipqa.types import Origin, Passage

TOLD = Told(Passage("s:1", "Vizsla", "A dog.", "s"), Origin("s", "http://e.org/1", "now"))
TEXT = st.text(max_size=20)
ANY_TOLD = st.builds(
    Told, st.builds(Passage, TEXT, TEXT, TEXT, TEXT), st.builds(Origin, TEXT, TEXT, TEXT)
)


class Clock:
    now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(tmp_path: Path, clock: Clock) -> Cache:
    return Cache(tmp_path / "deep" / "told.sqlite", clock)


def test_what_was_told_and_what_is_unknown_are_kept_apart(cache: Cache) -> None:
    cache.put("one", {"vizsla": [TOLD], "nobody": []})
    assert cache.get("one", ["vizsla", "nobody", "never asked"]) == {"vizsla": [TOLD], "nobody": []}
    assert cache.get("another", ["vizsla"]) == {}
    assert cache.get("one", []) == {}


def test_what_is_unknown_expires_sooner(cache: Cache, clock: Clock) -> None:
    cache.put("one", {"vizsla": [TOLD], "nobody": []})
    clock.now += UNKNOWN_FOR + 1
    assert cache.get("one", ["vizsla", "nobody"]) == {"vizsla": [TOLD]}
    clock.now += FOUND_FOR
    assert cache.get("one", ["vizsla"]) == {}


def test_expired_rows_are_removed(cache: Cache, clock: Clock) -> None:
    cache.put("one", {"old": [TOLD]})
    clock.now += FOUND_FOR + DAY
    cache.put("one", {"new": [TOLD]})
    with sqlite3.connect(cache.path) as database:
        assert [row[0] for row in database.execute("SELECT name FROM told")] == ["new"]
    database.close()


@given(st.lists(ANY_TOLD, max_size=3))
def test_passages_come_back_as_they_were(told: list[Told]) -> None:
    assert _read(_written(told)) == told


@pytest.mark.parametrize("damage", [b"", b"garbage" * 1_000, None])
def test_a_damaged_file_is_begun_again(cache: Cache, damage: bytes | None) -> None:
    cache.put("one", {"vizsla": [TOLD]})
    if damage is None:  # a page in the middle
        whole = bytearray(cache.path.read_bytes())
        whole[4096 : 4096 + 64] = b"\xff" * 64
        damage = bytes(whole)
    cache.path.write_bytes(damage)
    assert cache.get("one", ["vizsla"]) == {}
    cache.put("one", {"vizsla": [TOLD]})
    assert cache.get("one", ["vizsla"]) == {"vizsla": [TOLD]}


@pytest.mark.parametrize("text", ["", "{", "[[1]]", '[["too", "few"]]', "null", "7"])
def test_a_row_that_is_not_ours_is_asked_for_again(cache: Cache, text: str) -> None:
    cache.put("one", {"vizsla": [TOLD]})
    with sqlite3.connect(cache.path) as database:
        database.execute("UPDATE told SET told = ?", (text,))
    database.close()
    assert cache.get("one", ["vizsla"]) == {}


def test_a_locked_file_is_done_without(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skipqa.knowledge.on_demand.cache.TO_WRITE", 0.05)
    cache.put("one", {"vizsla": [TOLD]})
    database = sqlite3.connect(cache.path)
    database.execute("BEGIN EXCLUSIVE")
    assert cache.get("one", ["vizsla"]) == {}
    cache.put("one", {"lost": [TOLD]})
    database.rollback()
    database.close()
    assert cache.get("one", ["vizsla", "lost"]) == {"vizsla": [TOLD]}


def test_a_place_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = Cache(tmp_path / "file" / "told.sqlite")
    cache.put("one", {"vizsla": [TOLD]})
    assert cache.get("one", ["vizsla"]) == {}


WRITER = """
import sys
from pathlib import Path
from skipqa.knowledge.on_demand.cache import Cache
from skipqa.knowledge.on_demand.source import Told
from skipqa.types import Origin, Passage
path, who, count = sys.argv[1:]
cache = Cache(Path(path))
told = [Told(Passage("i", "t", "x" * 5000, "s"), Origin("s", "a", "n"))]
print("ready", flush=True)
for n in range(int(count)):
    cache.put(who, {str(n): told})
"""


def writer(cache: Cache, who: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(cache.path), who, str(count)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    return running


def test_two_processes_share_it_and_one_may_be_killed(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "told.sqlite")
    endless, other = writer(cache, "killed", 10**9), writer(cache, "other", 20)
    assert other.wait(60) == 0
    os.kill(endless.pid, signal.SIGKILL)  # in the middle of writing, most likely
    endless.wait()
    for running in (endless, other):
        assert running.stdout is not None
        running.stdout.close()
    cache.put("mine", {"vizsla": [TOLD]})
    assert cache.get("mine", ["vizsla"]) == {"vizsla": [TOLD]}
    written = cache.get("other", [str(n) for n in range(20)])
    assert all(told[0].passage.text == "x" * 5_000 for told in written.values())
    with sqlite3.connect(cache.path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
