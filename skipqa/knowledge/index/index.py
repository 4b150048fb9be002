"""An index, opened for queries: a snapshot, the engine that searches it, and its query encoder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skipqa.errors import UserError
from skipqa.knowledge.encoder_reader import EncoderReader
from skipqa.knowledge.encoder_wrappers import CachedQueries
from skipqa.knowledge.engines import open_engine, parse_uri
from skipqa.knowledge.engines.engine import DenseEngine, Engine
from skipqa.knowledge.index.format import Damaged
from skipqa.knowledge.index.snapshot import UNREADABLE, Snapshot, open_snapshot
from skipqa.knowledge.sparse_encoder import SparseEncoder
from skipqa.types import Hit, SparseVector


class Index(Snapshot):
    """Open one with `Index.open`. Nothing about an open index can be changed."""

    def __init__(
        self,
        snapshot: Snapshot,
        engine: Engine,
        trained_query: Path | None,
        query_cache: int,
        reader: EncoderReader,
    ) -> None:
        super().__init__(snapshot.folder, snapshot.manifest, snapshot.segments)
        self.engine = engine
        self._trained_query = trained_query
        self._query_cache = query_cache
        self._reader = reader

    @staticmethod
    def open(
        uri: str | Path,
        *,
        trained_query: Path | None = None,
        query_cache: int = 0,
        reader: EncoderReader | None = None,
    ) -> Index:
        """`uri` is a folder or `engine:folder?option=value` (see `knowledge.engines`).

        `trained_query` is a file of trained weights (`sparse_query.safetensors`) to encode
        questions with. It applies to passages stored by the lexical encoder; an index with another
        encoder keeps its own and ignores the file. `query_cache` is how many encoded queries are
        kept, for callers that ask the same questions again. Indexes with one `reader` share what
        their encoders have in common.
        """
        name, folder, options = parse_uri(str(uri))
        snapshot = open_snapshot(folder)
        engine = open_engine(name, snapshot, options)
        return Index(snapshot, engine, trained_query, query_cache, reader or EncoderReader())

    def search(self, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
        """The k best passages per query: highest inner product first, then lowest row."""
        try:
            return self.engine.search(queries, k)
        except UserError:
            raise
        except UNREADABLE as error:
            raise Damaged(self.folder, f"search raised {type(error).__name__}: {error}") from error

    def search_dense(self, queries: NDArray[np.floating], k: int) -> list[list[Hit]]:
        """The k best passages per row of `queries` [R, d] by inner product with the embeddings:
        with the engine if it supports dense queries, otherwise by comparing all of them."""
        if isinstance(self.engine, DenseEngine):
            return self.engine.search_dense(queries, k)
        rows, vectors = self.living_embeddings()
        scores = queries.astype(np.float32) @ vectors.T
        best = [np.lexsort((rows, -row))[:k] for row in scores]
        return [
            [Hit(int(rows[i]), float(row[i])) for i in order]
            for order, row in zip(best, scores, strict=True)
        ]

    def vector(self, row: int) -> SparseVector:
        """The passage as a query for similar passages: its stored weights, reweighted by the
        encoder (the lexical one multiplies by the idf)."""
        return self.encoder.as_query(self.stored_vector(row))

    @cached_property
    def encoder(self) -> SparseEncoder:
        """Loaded on first use: many callers only read passages or search with given vectors."""
        stored = self.manifest["encoder"]
        encoder = self._reader.read(
            stored["config"], self.folder / stored["folder"], self._trained_query
        )
        encoder.observe(self.document_frequency(), int(self.bases[-1]))
        return CachedQueries(encoder, self._query_cache) if self._query_cache else encoder
