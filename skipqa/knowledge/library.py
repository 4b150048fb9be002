"""Several indexes, asked together: one numbering of all passages, one list out.

Enters: indexes by name, or what opens them. Leaves: a `Library`, and one list (`merge`) of what its
indexes found. Long passages of one corpus would drown the short ones of another in a common index,
so every corpus has its own. Scores of different indexes can be compared if the queries are on one
scale (`text_query.same_length`): an index with little to say has its passages further down, but
its best one not as far as the score alone would put it. It does not know who writes the queries.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray

from skipqa.errors import UserError
from skipqa.knowledge.coverage import Coverage
from skipqa.knowledge.default import DEFAULT, built_default
from skipqa.knowledge.encoder_reader import EncoderReader
from skipqa.knowledge.engines import parse_uri
from skipqa.knowledge.index.index import Index
from skipqa.knowledge.sources import BUILT_IN
from skipqa.types import Hit, Passage, SparseVector

Uri = str | Path  # a folder, `engine:folder?option=value`, or `default`
Hits = Sequence[Sequence[Hit]]  # of each query, in one index
SMALLEST = 1e-6  # a dense inner product may be negative


@dataclass(frozen=True, slots=True)
class SearchedIndex:
    """An index that is searched for a question."""

    index: Index
    base: int  # the library's row of its first passage
    weight: float  # positive; its scores count times this


@dataclass(frozen=True, slots=True)
class RankedHit:
    row: int  # in the library
    score: float  # the inner product
    relative: float  # what the list is ordered by, 1 for the best score of all
    query: int  # the query that gave this score
    source: int  # which of the searched indexes it is from


@dataclass(frozen=True)
class Library:
    """Open one with `Library.open`. Rows number the passages of all indexes in order; the rows of
    a library of one index are those of the index."""

    indexes: Mapping[str, Index]  # by name, in order

    @staticmethod
    def open(
        uris: Iterable[Uri], *, trained_query: Path | None = None, query_cache: int = 0
    ) -> Library:
        """`trained_query` and `query_cache` are as `Index.open` has them, for every index."""
        reader = EncoderReader()
        indexes = {
            name: Index.open(
                uri, trained_query=trained_query, query_cache=query_cache, reader=reader
            )
            for name, uri in named(uris).items()
        }
        _check_apart(indexes)
        return Library(indexes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.indexes)

    @property
    def has_own_documents(self) -> bool:
        """Whether anything but corpora of general knowledge is searched."""
        return any(index.own_sources for index in self.indexes.values())

    def is_own(self, row: int) -> bool:
        """Whether its index holds anything but general knowledge."""
        return bool(self.indexes[self.name_of(row)].own_sources)

    @cached_property
    def bases(self) -> NDArray[np.int64]:
        """[indexes + 1] the row of each index's first passage, and the number of rows."""
        rows = [index.bases[-1] for index in self.indexes.values()]
        return np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])

    @cached_property
    def coverage(self) -> Coverage:
        """How many passages are about a name. The first time in the life of an index its titles are
        read, which takes seconds."""
        return Coverage.of(self.indexes.values())

    def __len__(self) -> int:
        return sum(map(len, self.indexes.values()))

    def passage(self, row: int) -> Passage:
        name, local = self._locate(row)
        return self.indexes[name].passage(local)

    def name_of(self, row: int) -> str:
        """Of the index that has the passage."""
        return self._locate(row)[0]

    def stored_vector(self, row: int) -> SparseVector:
        name, local = self._locate(row)
        return self.indexes[name].stored_vector(local)

    def embedding(self, row: int) -> NDArray[np.float32]:
        """[d], of an index that was built with embeddings."""
        name, local = self._locate(row)
        found = self.indexes[name].embeddings([local])
        if found is None:
            raise UserError(f"the index {name} has no embeddings: build it with --embeddings")
        return found[0]

    def row_of(self, passage_id: str) -> int | None:
        """In the first index that has the passage."""
        for index, base in zip(self.indexes.values(), self.bases.tolist(), strict=False):
            if (local := index.row_of(passage_id)) is not None:
                return int(base) + local
        return None

    def rows_of(self, passage_ids: Iterable[str]) -> list[int]:
        """Of those that some index has."""
        return [row for id in passage_ids if (row := self.row_of(id)) is not None]

    def weights(self, general: float) -> dict[str, float]:
        """Of each index by name: next to somebody's own documents general knowledge counts
        `general`, everything else 1."""
        general = general if self.has_own_documents else 1.0
        return {name: 1.0 if index.own_sources else general for name, index in self.indexes.items()}

    def searched(self, weights: Mapping[str, float]) -> tuple[SearchedIndex, ...]:
        """The indexes to search, given weights by name: one that is not named counts 1, one of
        weight 0 is left out."""
        found = (
            SearchedIndex(index, int(base), weights.get(name, 1.0))
            for (name, index), base in zip(self.indexes.items(), self.bases[:-1], strict=True)
        )
        return tuple(source for source in found if source.weight > 0)

    def _locate(self, row: int) -> tuple[str, int]:
        """The index, and the row there."""
        if not 0 <= row < self.bases[-1]:
            raise IndexError(f"row {row} of a library of {self.bases[-1]} rows")
        number = int(np.searchsorted(self.bases, row, "right")) - 1
        return self.names[number], int(row - self.bases[number])


def _check_apart(indexes: Mapping[str, Index]) -> None:
    """Refuse a built-in corpus in two indexes: its passages would be found twice."""
    holder: dict[str, str] = {}
    for name, index in indexes.items():
        for corpus in index.manifest["corpus"]["sources"]:
            if corpus in holder:
                raise UserError(
                    f"{corpus} is in the index {holder[corpus]} and in {name}: give one of them, "
                    f"or build {name} without it"
                )
            if corpus in BUILT_IN:
                holder[corpus] = name


def named(uris: Iterable[Uri]) -> dict[str, Uri]:
    """What is opened for these, by name. An index of the default library is named after its corpus,
    another after its folder, with as many folders above as tell it from the others."""
    opened: dict[Path, tuple[PurePath, Uri]] = {}  # by where it lies: what names it, what opens it
    for uri in uris:
        for path, place, one in _expanded(uri):
            if path.resolve() in opened:
                raise UserError(f"the index at {path} is given twice")
            opened[path.resolve()] = (place, one)
    if not opened:
        raise UserError("a library needs at least one index")
    places = [place for place, _ in opened.values()]
    return {_name(place, places): uri for place, uri in opened.values()}


def _expanded(uri: Uri) -> list[tuple[Path, PurePath, Uri]]:
    """The folder of each index, the path that names it, and what opens it."""
    if str(uri) == DEFAULT:
        return [(path, PurePath(DEFAULT, name), path) for name, path in built_default().items()]
    path = Path(os.path.abspath(parse_uri(str(uri))[1]))
    return [(path, path, uri)]


def _name(place: PurePath, places: Sequence[PurePath]) -> str:
    for length in range(1, len(place.parts)):
        tail = place.parts[-length:]
        if sum(other.parts[-length:] == tail for other in places) == 1:
            return "/".join(tail)
    return str(place)


def best_hits(hits: Hits) -> list[tuple[Hit, int]]:
    """Union over the queries of one index: each passage once, with its best score and the query
    that gave it.

    Ordered by score, then row; on equal scores the earlier query has the passage.
    """
    best: dict[int, tuple[Hit, int]] = {}
    for query, found in enumerate(hits):
        for hit in found:
            if hit.row not in best or hit.score > best[hit.row][0].score:
                best[hit.row] = (hit, query)
    return sorted(best.values(), key=lambda pair: (-pair[0].score, pair[0].row))


def merge(
    sources: Sequence[SearchedIndex], hits: Sequence[Hits], sharpness: float
) -> list[RankedHit]:
    """One list of what every source found: by relative score, then in the order of the sources,
    then by score and row. `sharpness` is explained in `RetrieveConfig`."""
    found = [best_hits(of_source) for of_source in hits]
    best_of = [max(SMALLEST, of_source[0][0].score) if of_source else 0.0 for of_source in found]
    best = max(best_of, default=0.0)
    ranked = [
        RankedHit(
            source.base + hit.row,
            hit.score,
            source.weight * (max(hit.score, SMALLEST) / own) * (own / best) ** sharpness,
            query,
            number,
        )
        for number, (source, own) in enumerate(zip(sources, best_of, strict=True))
        for hit, query in found[number]
    ]
    # The sort is stable, and each source is in the order of its scores and rows.
    return sorted(ranked, key=lambda hit: -hit.relative)
