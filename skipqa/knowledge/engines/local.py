"""Search in this process, directly on the memory-mapped index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from skipqa.errors import MissingExtra, UserError
from skipqa.knowledge.engines.options import read_options
from skipqa.knowledge.index.exact import search_segment_exactly
from skipqa.knowledge.index.format import Segment
from skipqa.knowledge.index.search import BATCH, Best, Effort, best_of, search_segment
from skipqa.types import Hit, SparseVector

if TYPE_CHECKING:
    from skipqa.knowledge.index.snapshot import Snapshot


SearchSegment = Callable[[Segment, Sequence[SparseVector], Effort, int], Best]


class LocalEngine:
    """Impact-ordered lists; the options `postings` and `candidates` bound the work per query.

    `search_segment` is the NumPy or the compiled version of the same algorithm.
    """

    def __init__(self, snapshot: Snapshot, effort: Effort, search_segment: SearchSegment) -> None:
        self.snapshot = snapshot
        self.effort = effort
        self.search_segment = search_segment

    @staticmethod
    def open(snapshot: Snapshot, options: Mapping[str, str], compiled: bool = False) -> LocalEngine:
        default = Effort.for_rows(max((s.rows for s in snapshot.segments), default=0))
        effort = read_options(Effort, "local", options, default)
        return LocalEngine(snapshot, effort, _compiled() if compiled else search_segment)

    def search(self, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
        hits: list[list[Hit]] = []
        effort = self.effort
        if k > effort.candidates:
            effort = replace(effort, candidates=k)
        for start in range(0, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            found = [
                self.search_segment(segment, batch, effort, k) for segment in self.snapshot.segments
            ]
            hits.extend(to_hits(found, self.snapshot, k))
        return hits


def _compiled() -> SearchSegment:
    try:
        from skipqa.knowledge.index.compiled import CompiledSearch
    except ImportError as error:
        raise MissingExtra("the compiled engine", "fast") from error
    return CompiledSearch()


class ExactEngine:
    """Scores every stored vector against every query."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    @staticmethod
    def open(snapshot: Snapshot, options: Mapping[str, str]) -> ExactEngine:
        if options:
            raise UserError(f"exact: takes no options, got {', '.join(options)}")
        return ExactEngine(snapshot)

    def search(self, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
        found = [search_segment_exactly(segment, queries, k) for segment in self.snapshot.segments]
        return to_hits(found, self.snapshot, k)


def to_hits(found: Sequence[Best], snapshot: Snapshot, k: int) -> list[list[Hit]]:
    """The best over all segments, with rows of the snapshot and scores in units of weights."""
    best = found[0]
    if len(found) > 1:
        query = np.repeat(np.arange(len(best.rows)), len(found) * k)
        row = np.concatenate(
            [part.rows + base for part, base in zip(found, snapshot.bases[:-1], strict=True)],
            axis=1,
        )
        score = np.concatenate([part.scores for part in found], axis=1)
        best = best_of(query, row.ravel(), score.ravel(), len(best.rows), k)
    scores = (best.scores * np.float32(snapshot.scale)).tolist()
    return [
        [Hit(row, score) for row, score in zip(*pair, strict=True) if score > 0]
        for pair in zip(best.rows.tolist(), scores, strict=True)
    ]
