"""An index, opened for reading: passages, their vectors, and search through an engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skipqa.errors import UserError
from skipqa.knowledge.chunk import Chunk
from skipqa.knowledge.engines import DenseEngine, Engine, open_engine, parse_uri
from skipqa.knowledge.index.build import find
from skipqa.knowledge.index.format import Damaged, Segment, open_segments, read_manifest
from skipqa.knowledge.index.parts import LEVELS
from skipqa.knowledge.sparse_encoder import LexicalEncoder, SparseEncoder, load_encoder
from skipqa.knowledge.vectors import NUM_TERMS
from skipqa.types import Hit, Passage, SparseVector

# What damaged bytes can lead to when they are read as offsets, rows or JSON
UNREADABLE = (IndexError, ValueError, KeyError, TypeError, OverflowError, MemoryError, OSError)


class Index:
    """Rows number the passages of all segments in order; they hold until the index changes.
    A passage's id holds for ever."""

    def __init__(self, folder: Path, manifest: dict[str, Any], segments: list[Segment]) -> None:
        self.folder = folder
        self.manifest = manifest
        self.segments = segments
        self.bases = np.concatenate([[0], np.cumsum([s.rows for s in segments], dtype=np.int64)])
        self.scale: float = manifest["encoder"]["ceiling"] / LEVELS  # an impact's unit
        self.engine: Engine

    @staticmethod
    def open(uri: str | Path) -> Index:
        """`folder`, or `engine:folder?option=value`: see `knowledge.engines`."""
        name, folder, options = parse_uri(str(uri))
        index = _open(folder)
        index.engine = open_engine(name, index, options)
        return index

    def __len__(self) -> int:
        return int(self.manifest["corpus"]["passages"])

    def search(self, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
        """The k best passages of each query: highest inner product first, then lowest row."""
        try:
            return self.engine.search(queries, k)
        except UserError:
            raise
        except UNREADABLE as error:
            raise Damaged(self.folder, f"search met {type(error).__name__}: {error}") from error

    def search_dense(self, queries: NDArray[np.floating], k: int) -> list[list[Hit]]:
        """The k best passages of each row of `queries` [R, d] by their embeddings' inner
        product: through the engine where it can, else over all of them."""
        if isinstance(self.engine, DenseEngine):
            return self.engine.search_dense(queries, k)
        rows, vectors = self.living_embeddings()
        scores = queries.astype(np.float32) @ vectors.T
        best = [np.lexsort((rows, -row))[:k] for row in scores]
        return [
            [Hit(int(rows[i]), float(row[i])) for i in order]
            for order, row in zip(best, scores, strict=True)
        ]

    def passage(self, row: int) -> Passage:
        return self.chunk(row).passage

    def chunk(self, row: int) -> Chunk:
        """The passage with the character offsets it was cut from."""
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

    def vector(self, row: int) -> SparseVector:
        """The passage as a query for passages like it: its stored impacts, weighted as the
        encoder weights a query (for the lexical one, by the idf)."""
        return self.encoder.as_query(self.stored_vector(row))

    def stored_vector(self, row: int) -> SparseVector:
        """The passage's own weights, as quantised."""
        number, local = self._locate(row)
        offsets, terms, impacts = self.segments[number].forward
        part = slice(offsets[local], offsets[local + 1])
        return SparseVector(terms[part].astype(np.int32), impacts[part] * np.float32(self.scale))

    def embeddings(self, rows: Sequence[int]) -> NDArray[np.float32] | None:
        """[len(rows), d], or None where the index was built without embeddings."""
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

    @cached_property
    def encoder(self) -> SparseEncoder:
        stored = self.manifest["encoder"]
        return self._told(load_encoder(stored["config"], self.folder / stored["folder"]))

    def ask_with(self, delta: Path) -> None:
        """From now on questions are weighed by what was trained (`knowledge.learned`). Passages
        that are stored as another kind of vector cannot be asked so, and nothing changes."""
        from skipqa.knowledge.learned import LearnedEncoder

        if type(lexical := self.encoder) is LexicalEncoder:
            learned = LearnedEncoder(lexical.vocabulary, delta, lexical.saturation)
            self.encoder = self._told(learned)

    def _told(self, encoder: SparseEncoder) -> SparseEncoder:
        """An encoder that knows how common each term is here."""
        frequencies = np.zeros(NUM_TERMS, np.int64)
        for segment in self.segments:
            frequencies += segment.array("frequencies")
        encoder.observe(frequencies, int(self.bases[-1]))
        return encoder

    def _locate(self, row: int) -> tuple[int, int]:
        if not 0 <= row < self.bases[-1]:
            raise IndexError(f"row {row} of an index of {self.bases[-1]} rows")
        number = int(np.searchsorted(self.bases, row, "right")) - 1
        return number, int(row - self.bases[number])


def _open(folder: Path) -> Index:
    """A writer may replace the manifest, and remove old segments, between our two reads."""
    manifest = read_manifest(folder)
    try:
        return Index(folder, manifest, open_segments(folder, manifest))
    except Damaged:
        fresh = read_manifest(folder)
        if fresh["generation"] == manifest["generation"]:
            raise
        return Index(folder, fresh, open_segments(folder, fresh))
