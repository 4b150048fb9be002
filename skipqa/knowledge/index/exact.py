"""The exact oracle: every stored vector scored against every query, nothing skipped.

Independent of lists and thresholds, and linear in the corpus: what recall is measured against.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skipqa.knowledge.index.format import Segment
from skipqa.knowledge.index.search import Scored, sum_spans
from skipqa.knowledge.vectors import NUM_TERMS
from skipqa.types import SparseVector

BLOCK_ROWS = 1 << 14


def search_segment_exactly(
    segment: Segment, queries: Sequence[SparseVector], scale: float, k: int
) -> Scored:
    """The k best rows of each query with a positive score; ties go to the lower row."""
    offsets, terms, impacts = segment.forward
    found_query, found_row, found_score = [], [], []
    for number, query in enumerate(queries):
        table = np.zeros(NUM_TERMS, np.float32)
        table[query.terms] = query.weights
        rows, scores = np.zeros(0, np.int64), np.zeros(0, np.float32)
        for low in range(0, segment.rows, BLOCK_ROWS):
            high = min(low + BLOCK_ROWS, segment.rows)
            part = slice(offsets[low], offsets[high])
            products = table[terms[part]] * impacts[part]
            block = sum_spans(products, np.diff(offsets[low : high + 1])) * np.float32(scale)
            if segment.deleted is not None:
                block[segment.deleted[low:high]] = 0
            floor = scores[-1] if len(scores) == k else np.float32(0)
            better = np.flatnonzero(block > floor)
            rows = np.concatenate([rows, better + low])
            scores = np.concatenate([scores, block[better]])
            order = np.lexsort((rows, -scores))[:k]
            rows, scores = rows[order], scores[order]
        found_query.append(np.full(len(rows), number))
        found_row.append(rows)
        found_score.append(scores)
    return Scored(
        np.concatenate(found_query), np.concatenate(found_row), np.concatenate(found_score)
    )
