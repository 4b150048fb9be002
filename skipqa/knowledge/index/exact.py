"""Exact search: scores every stored vector against every query.

It uses neither lists nor thresholds and is linear in the corpus. Recall is measured against it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skipqa.knowledge.index.format import Segment
from skipqa.knowledge.index.search import Best, sum_spans
from skipqa.knowledge.vectors import NUM_TERMS
from skipqa.types import SparseVector

BLOCK_ROWS = 1 << 14


def search_segment_exactly(segment: Segment, queries: Sequence[SparseVector], k: int) -> Best:
    """The k best rows with a positive score that were not deleted; ties go to the lower row."""
    best = Best(np.zeros((len(queries), k), np.int64), np.zeros((len(queries), k), np.float32))
    offsets, terms, impacts = segment.forward
    for number, query in enumerate(queries):
        table = np.zeros(NUM_TERMS, np.float32)
        table[query.terms] = query.weights
        rows, scores = np.zeros(0, np.int64), np.zeros(0, np.float32)
        for low in range(0, segment.rows, BLOCK_ROWS):
            high = min(low + BLOCK_ROWS, segment.rows)
            part = slice(offsets[low], offsets[high])
            products = table[terms[part]] * impacts[part]
            block = sum_spans(products, np.diff(offsets[low : high + 1]))
            if segment.deleted is not None:
                block[segment.deleted[low:high]] = 0
            floor = scores[-1] if len(scores) == k else np.float32(0)
            better = np.flatnonzero(block > floor)
            rows = np.concatenate([rows, better + low])
            scores = np.concatenate([scores, block[better]])
            order = np.lexsort((rows, -scores))[:k]
            rows, scores = rows[order], scores[order]
        best.rows[number, : len(rows)] = rows
        best.scores[number, : len(rows)] = scores
    return best
