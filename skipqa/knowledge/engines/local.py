"""Search inside this process, straight from the memory-mapped index."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from skipqa.errors import UserError
from skipqa.knowledge.index.exact import search_segment_exactly
from skipqa.knowledge.index.search import BATCH, Effort, Scored, search_segment
from skipqa.types import Hit, SparseVector

if TYPE_CHECKING:
    from skipqa.knowledge.index.index import Index


class LocalEngine:
    """Impact-ordered lists; `postings` and `candidates` say how much one query may spend."""

    def __init__(self, index: Index, effort: Effort) -> None:
        self.index = index
        self.effort = effort

    @staticmethod
    def open(index: Index, options: Mapping[str, str]) -> LocalEngine:
        default = Effort()
        chosen = {name: getattr(default, name) for name in default.__slots__}
        for name, value in options.items():
            if name not in chosen or not value.isdigit() or int(value) < 1:
                known = ", ".join(chosen)
                raise UserError(f"local: unknown option {name}={value}; known are {known}")
            chosen[name] = int(value)
        return LocalEngine(index, Effort(**chosen))

    def search(self, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
        hits: list[list[Hit]] = []
        effort = Effort(self.effort.postings, max(self.effort.candidates, k))
        for start in range(0, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            scored = [
                search_segment(segment, batch, self.index.scale, effort)
                for segment in self.index.segments
            ]
            hits.extend(best(scored, self.index.bases, len(batch), k))
        return hits


class ExactEngine:
    """Every stored vector against every query."""

    def __init__(self, index: Index) -> None:
        self.index = index

    @staticmethod
    def open(index: Index, options: Mapping[str, str]) -> ExactEngine:
        if options:
            raise UserError(f"exact: takes no options, got {', '.join(options)}")
        return ExactEngine(index)

    def search(self, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
        scored = [
            search_segment_exactly(segment, queries, self.index.scale, k)
            for segment in self.index.segments
        ]
        return best(scored, self.index.bases, len(queries), k)


def best(
    scored: Sequence[Scored], bases: Sequence[int] | np.ndarray, num_queries: int, k: int
) -> list[list[Hit]]:
    """The k best over all segments, highest score first, then lowest row."""
    query = np.concatenate([s.query for s in scored])
    row = np.concatenate([s.row + base for s, base in zip(scored, bases, strict=False)])
    score = np.concatenate([s.score for s in scored])
    order = np.lexsort((row, -score, query))
    order = order[score[order] > 0]
    bounds = np.searchsorted(query[order], np.arange(num_queries + 1))
    return [
        [Hit(int(row[i]), float(score[i])) for i in order[low : min(high, low + k)]]
        for low, high in itertools.pairwise(bounds)
    ]
