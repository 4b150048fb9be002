"""What sources told, kept on disk: also that they knew nothing, for a shorter time.

Enters: answers by name. Leaves: the same, later, also in another process. It is one SQLite file, of
which nothing is needed: a file that is damaged is begun again, one that is locked or cannot be
written is done without. A kill in the middle of writing leaves what was there before.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from skipqa import assets
from skipqa.knowledge.on_demand.source import Answers, Told
from skipqa.types import Origin, Passage

DAY = 86_400.0  # seconds
FOUND_FOR = 30 * DAY
UNKNOWN_FOR = DAY
# Seconds that other writers are waited for: a question waits to read, a thread of its own to write
TO_READ, TO_WRITE = 0.05, 5.0
T = TypeVar("T")


class Cache:
    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self.clock = path, clock

    @staticmethod
    def default() -> Cache:
        return Cache(assets.home() / "on-demand" / "told-1.sqlite")

    def get(self, source: str, names: Sequence[str]) -> dict[str, list[Told]]:
        """What the source told of these names; one that it has to be asked for is not there."""

        def read(database: sqlite3.Connection) -> list[tuple[str, float, str]]:
            marks = ",".join("?" * len(names))
            return database.execute(
                f"SELECT name, asked, told FROM told WHERE source = ? AND name IN ({marks})",
                (source, *names),
            ).fetchall()

        known = {}
        for name, asked, told in self._with(read, TO_READ) or ():
            passages = _read(told)
            if passages is None or self.clock() - asked > _lifetime(passages):
                continue
            known[name] = passages
        return known

    def put(self, source: str, answers: Answers) -> None:
        """An empty list says that the source knows nothing of the name."""
        asked = self.clock()
        rows = [(source, name, asked, _written(told)) for name, told in answers.items()]

        def write(database: sqlite3.Connection) -> bool:
            with database:
                database.execute("DELETE FROM told WHERE asked < ?", (asked - FOUND_FOR,))
                database.executemany("INSERT OR REPLACE INTO told VALUES (?, ?, ?, ?)", rows)
            return True

        self._with(write, TO_WRITE)

    def _with(self, use: Callable[[sqlite3.Connection], T], wait_s: float) -> T | None:
        """`use` on an open database; None where there is none at present."""
        for _ in range(2):
            try:
                with closing(self._open(wait_s)) as database:
                    return use(database)
            except sqlite3.OperationalError:  # locked, read-only, or no space
                return None
            except sqlite3.DatabaseError:  # no database: begin again
                self._remove()
            except OSError:
                return None
        return None

    def _open(self, wait_s: float) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self.path, timeout=wait_s)
        try:
            database.execute(
                "CREATE TABLE IF NOT EXISTS told (source TEXT, name TEXT, asked REAL, told TEXT, "
                "PRIMARY KEY (source, name)) WITHOUT ROWID"
            )
        except BaseException:
            database.close()
            raise
        return database

    def _remove(self) -> None:
        for path in (self.path, self.path.with_name(f"{self.path.name}-journal")):
            path.unlink(missing_ok=True)


def _lifetime(told: Sequence[Told]) -> float:
    return FOUND_FOR if told else UNKNOWN_FOR


def _written(told: Sequence[Told]) -> str:
    rows = [[p.id, p.title, p.text, p.source, o.source, o.address, o.asked] for p, o in told]
    return json.dumps(rows, ensure_ascii=False)


def _read(text: str) -> list[Told] | None:
    """None if it is not what was written."""
    try:
        rows = json.loads(text)
        if not all(isinstance(cell, str) for row in rows for cell in row):
            return None
        return [Told(Passage(*row[:4]), Origin(*row[4:])) for row in rows]
    except (ValueError, TypeError):
        return None
