"""Parts of an unfinished build: what a killed build keeps, and how far it had read its sources.

A part is a segment without lists. It is valid once the journal names it, and the journal is
replaced atomically. A build that starts again with the same fingerprint skips the source rows
that are in the journal's parts.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skipqa.knowledge.chunk import Chunk
from skipqa.knowledge.index.format import (
    DTYPES,
    Segment,
    id_hash,
    write_atomically,
)
from skipqa.knowledge.sources import BadRow
from skipqa.knowledge.vectors import SparseRows

MAX_BAD_ROWS_NAMED = 50
LEVELS = 255


@dataclass(slots=True)
class Progress:
    """How many rows of the sources were read, and which of them were skipped."""

    rows_read: int = 0
    bad_rows: int = 0
    bad_rows_named: list[tuple[str, str]] = field(default_factory=list)

    def skip(self, row: BadRow) -> None:
        self.bad_rows += 1
        if len(self.bad_rows_named) < MAX_BAD_ROWS_NAMED:
            self.bad_rows_named.append((row.place, row.reason))


class Journal:
    """The finished parts in `folder`; they are discarded if `fingerprint` has changed."""

    FILE = "journal.json"

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder
        self.fingerprint = fingerprint
        self.progress = Progress()
        self.rows_of_parts: list[int] = []
        try:
            stored = json.loads((folder / self.FILE).read_bytes())
            if stored["fingerprint"] == fingerprint:
                self.progress = Progress(**stored["progress"])
                self.rows_of_parts = stored["rows_of_parts"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # nothing to resume
        if not self.rows_of_parts:
            forget(folder)
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def next_part(self) -> Path:
        return self.folder / f"part-{len(self.rows_of_parts):05d}"

    def commit(self, rows: int) -> None:
        """Records that `next_part` is complete on disk and covers what `progress` has read."""
        self.rows_of_parts.append(rows)
        stored = {
            "fingerprint": self.fingerprint,
            "progress": asdict(self.progress),
            "rows_of_parts": self.rows_of_parts,
        }
        write_atomically(self.folder / self.FILE, json.dumps(stored).encode())

    def parts(self) -> list[Segment]:
        found = []
        for number, rows in enumerate(self.rows_of_parts):
            folder = self.folder / f"part-{number:05d}"
            sizes = {path.name: {"bytes": path.stat().st_size} for path in folder.iterdir()}
            found.append(Segment(folder, rows, sizes))
        return found


def forget(folder: Path) -> None:
    """Deletes the journal first, so that a kill cannot leave a journal naming deleted parts."""
    (folder / Journal.FILE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


class PartWriter:
    """Appends chunks with their vectors to the raw files of one part."""

    NAMES = ("forward.offsets", "forward.terms", "forward.impacts", "texts.offsets", "texts.json")

    def __init__(self, folder: Path, ceiling: float, with_embeddings: bool) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self.ceiling = ceiling
        self.rows = 0
        names = (*self.NAMES, "ids.hashes", *(["embeddings"] if with_embeddings else []))
        self._files = {name: (folder / name).open("wb") for name in names}
        self._ends = {"forward.offsets": 0, "texts.offsets": 0}
        for name in self._ends:
            self._write(name, np.zeros(1))

    def append(
        self,
        chunks: Sequence[Chunk],
        vectors: SparseRows,
        embeddings: NDArray[np.floating] | None = None,
    ) -> None:
        assert len(chunks) == len(vectors)
        lengths, terms, impacts = quantise(vectors, self.ceiling)
        self._extend("forward.offsets", lengths)
        self._write("forward.terms", terms)
        self._write("forward.impacts", impacts)
        records = [to_record(chunk) for chunk in chunks]
        self._extend("texts.offsets", np.array([len(record) for record in records]))
        self._files["texts.json"].write(b"".join(records))
        self._write("ids.hashes", np.array([id_hash(c.passage.id) for c in chunks], np.uint64))
        if "embeddings" in self._files:
            assert embeddings is not None
            self._write("embeddings", embeddings)
        self.rows += len(chunks)

    def close(self) -> None:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def _extend(self, name: str, lengths: NDArray[np.integer]) -> None:
        ends = np.cumsum(lengths, dtype=np.int64) + self._ends[name]
        if len(ends):
            self._ends[name] = int(ends[-1])
        self._write(name, ends)

    def _write(self, name: str, values: NDArray) -> None:
        self._files[name].write(np.ascontiguousarray(values, DTYPES[name]).data)


def quantise(
    vectors: SparseRows, ceiling: float
) -> tuple[NDArray[np.int64], NDArray[np.uint16], NDArray[np.uint8]]:
    """(lengths, terms, impacts) with 8-bit impacts; weights that round to zero are dropped."""
    impacts = np.minimum(np.rint(vectors.weights * (LEVELS / ceiling)), LEVELS).astype(np.uint8)
    kept = impacts > 0
    before = np.concatenate([[0], np.cumsum(kept)])
    lengths = np.diff(before[vectors.offsets])
    return lengths, vectors.terms[kept], impacts[kept]


def to_record(chunk: Chunk) -> bytes:
    p = chunk.passage
    return json.dumps(
        [p.id, p.title, p.text, p.source, chunk.start, chunk.end], ensure_ascii=False
    ).encode("utf-8", "replace")
