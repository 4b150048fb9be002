"""One generation of an index on disk, opened for reading: passages, stored vectors, embeddings.

Enters: a folder. Leaves: a `Snapshot`, which stays valid while a writer replaces the index. It
knows neither queries nor search engines; engines read it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skipqa.errors import UserError
from skipqa.knowledge.chunk import Chunk
from skipqa.knowledge.index.format import Damaged, Segment, find, open_segments, read_manifest
from skipqa.knowledge.index.parts import LEVELS
from skipqa.knowledge.sources import GENERAL_KNOWLEDGE
from skipqa.knowledge.vectors import NUM_TERMS
from skipqa.types import Passage, SparseVector

# What reading damaged bytes as offsets, rows or JSON may raise
UNREADABLE = (IndexError, ValueError, KeyError, TypeError, OverflowError, MemoryError, OSError)


class Snapshot:
    """Rows number the passages of all segments in order. They are valid for this snapshot only;
    the id of a passage never changes."""

    def __init__(self, folder: Path, manifest: dict[str, Any], segments: list[Segment]) -> None:
        self.folder = folder
        self.manifest = manifest
        self.segments = segments
        self.bases = np.concatenate([[0], np.cumsum([s.rows for s in segments], dtype=np.int64)])
        self.scale: float = manifest["encoder"]["ceiling"] / LEVELS  # the weight of impact 1

    def __len__(self) -> int:
        return int(self.manifest["corpus"]["passages"])

    @property
    def own_sources(self) -> list[str]:
        """Those that are somebody's own documents, not general knowledge."""
        corpus = self.manifest["corpus"]
        # Older indexes do not say what else is general.
        general = GENERAL_KNOWLEDGE.union(corpus.get("general", ()))
        return [source for source in corpus["sources"] if source not in general]

    def passage(self, row: int) -> Passage:
        return self.chunk(row).passage

    def chunk(self, row: int) -> Chunk:
        """The passage with its character offsets in the document."""
        number, local = self._locate(row)
        try:
            passage_id, title, text, source, start, end = json.loads(
                self.segments[number].record(local)
            )
        except UNREADABLE as error:
            raise Damaged(self.folder, f"the text of row {row} is unreadable") from error
        return Chunk(Passage(passage_id, title, text, source), start, end)

    def row_of(self, passage_id: str) -> int | None:
        try:
            place = find(self.segments, passage_id)
        except UNREADABLE as error:
            raise Damaged(self.folder, "its table of ids is unreadable") from error
        return None if place is None else int(self.bases[place[0]]) + place[1]

    def stored_vector(self, row: int) -> SparseVector:
        """The weights of the passage, as quantized."""
        number, local = self._locate(row)
        offsets, terms, impacts = self.segments[number].forward
        part = slice(offsets[local], offsets[local + 1])
        return SparseVector(terms[part].astype(np.int32), impacts[part] * np.float32(self.scale))

    def document_frequency(self) -> NDArray[np.int64]:
        """[V] how many rows contain each term."""
        frequencies = np.zeros(NUM_TERMS, np.int64)
        for segment in self.segments:
            frequencies += segment.array("frequencies")
        return frequencies

    def embeddings(self, rows: Sequence[int]) -> NDArray[np.float32] | None:
        """[len(rows), d], or None if the index was built without embeddings."""
        if not self.segments or not all(s.has_embeddings for s in self.segments):
            return None
        found = []
        for row in rows:
            number, local = self._locate(row)
            matrix = self.segments[number].embeddings
            assert matrix is not None
            found.append(matrix[local])
        return np.array(found, dtype=np.float32)

    def living_embeddings(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(rows, vectors [len(rows), d]) of every passage that was not deleted."""
        rows, vectors = [], []
        for segment, base in zip(self.segments, self.bases[:-1], strict=True):
            if segment.embeddings is None:
                raise UserError(
                    f"the index at {self.folder} has no embeddings: build it with --embeddings"
                )
            alive = np.arange(segment.rows)
            if segment.deleted is not None:
                alive = np.flatnonzero(~segment.deleted)
            rows.append(alive + base)
            vectors.append(segment.embeddings[alive].astype(np.float32))
        return np.concatenate(rows), np.concatenate(vectors)

    def _locate(self, row: int) -> tuple[int, int]:
        if not 0 <= row < self.bases[-1]:
            raise IndexError(f"row {row} of an index of {self.bases[-1]} rows")
        number = int(np.searchsorted(self.bases, row, "right")) - 1
        return number, int(row - self.bases[number])


def open_snapshot(folder: Path) -> Snapshot:
    """A writer may replace the manifest and remove old segments while they are being opened; the
    new manifest is then read."""
    manifest = read_manifest(folder)
    try:
        return Snapshot(folder, manifest, open_segments(folder, manifest))
    except Damaged:
        fresh = read_manifest(folder)
        if fresh["generation"] == manifest["generation"]:
            raise
        return Snapshot(folder, fresh, open_segments(folder, fresh))
