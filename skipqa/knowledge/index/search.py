"""The fast local search: impact-ordered lists propose, the stored vectors decide.

A posting (t, row) adds q_t * impact to its row. Lists are sorted by impact, so the largest
contributions of a query are prefixes of its lists: search reads those prefixes down to one
threshold, chosen so that about `Effort.postings` are read; adds them up in bins that rows
share (a row's bin holds at least the row's own sum, so a good row never looks bad); and
scores the rows of the fullest bins exactly, from their whole vectors. No step sorts postings
and none touches memory in proportion to the corpus. All queries of a batch go through each
step together, which is what makes plain NumPy fast enough.

Legend: R queries, B bins a query, C candidates of all queries together, V terms.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skipqa.knowledge.index.format import Segment
from skipqa.knowledge.vectors import NUM_TERMS, SparseRows, spans
from skipqa.types import SparseVector

BATCH = 8  # queries a pass; the paper never asks for more regions
THRESHOLDS = 512  # steps between a query's largest contribution and nothing
BINS_PER_POSTING = 4  # fewer collide more, more cost more memory traffic
GROUP = 16  # bins whose maximum stands for them while the fullest are sought


@dataclass(frozen=True, slots=True)
class Effort:
    """What one query may spend in one segment."""

    postings: int
    candidates: int

    @staticmethod
    def for_rows(num_rows: int) -> Effort:
        """Kept recall@4 above 0.97 in every corpus of benchmarks/index_recall.py and
        benchmarks/index_growth.py: deeper lists need deeper reading, up to the lists' own
        limit."""
        return Effort(
            postings=min(max(1 << 14, num_rows // 64), 1 << 16),
            candidates=min(max(64, num_rows // 25_000), 256),
        )


@dataclass(frozen=True, slots=True)
class Best:
    """The k best rows of each query: highest score first, then lowest row."""

    rows: NDArray[np.int64]  # [R, k]
    scores: NDArray[np.float32]  # [R, k]; 0 where a query has fewer than k


def search_segment(
    segment: Segment, queries: Sequence[SparseVector], effort: Effort, k: int
) -> Best:
    """Scores count impacts, and are exact for the rows found."""
    assert len(queries) <= BATCH
    assert k <= effort.candidates
    block = SparseRows.stack(queries)
    query, row = _propose(segment, block, effort)
    return best_of(query, row, score_rows(segment, block, query, row), len(queries), k)


def best_of(
    query: NDArray[np.int64],
    row: NDArray[np.int64],
    score: NDArray[np.float32],
    num_queries: int,
    k: int,
) -> Best:
    """The k best among scored (query, row) pairs in any order."""
    order = np.lexsort((row, -score, query))
    query, row, score = query[order], row[order], score[order]
    rank = np.arange(len(query)) - np.searchsorted(query, query)
    kept = (rank < k) & (score > 0)
    best = Best(np.zeros((num_queries, k), np.int64), np.zeros((num_queries, k), np.float32))
    best.rows[query[kept], rank[kept]] = row[kept]
    best.scores[query[kept], rank[kept]] = score[kept]
    return best


def _propose(
    segment: Segment, block: SparseRows, effort: Effort
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(query, row) of each candidate: all rows that fell into one of its fullest bins."""
    num_bins = 1 << (BINS_PER_POSTING * effort.postings - 1).bit_length()
    query, row, contribution = _postings(segment, block, effort.postings)
    ends = np.searchsorted(query, np.arange(len(block) + 1))
    found = []
    for low, high in itertools.pairwise(ends.tolist()):  # one query's bins fit the cache
        rows = row[low:high]
        bin_of = rows & (num_bins - 1)
        total = np.bincount(bin_of, weights=contribution[low:high], minlength=num_bins)
        found.append(rows[total[bin_of] >= _floor(total, effort.candidates)])
    query = np.repeat(np.arange(len(block)), [len(rows) for rows in found])
    pair = np.unique((query << 32) | np.concatenate(found))
    query, row = pair >> 32, pair & 0xFFFFFFFF
    if segment.deleted is not None:
        alive = ~segment.deleted[row]
        query, row = query[alive], row[alive]
    return query, row


def _floor(total: NDArray[np.number], candidates: int) -> float:
    """A value that at least `candidates` bins reach, where that many are filled, and not many
    more: the candidates-th largest of the maxima of groups of bins."""
    maxima = total.reshape(-1, GROUP).max(axis=1)
    place = max(0, len(maxima) - candidates)
    return max(float(np.partition(maxima, place)[place]), float(np.finfo(np.float64).tiny))


def _postings(
    segment: Segment, block: SparseRows, budget: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """(query, row, contribution) of the postings worth reading."""
    run_offsets, run_impacts, run_lengths = segment.runs
    list_offsets, list_rows = segment.lists
    # one (query, term) pair for each posting of the queries; each has a list, each list runs
    pair_query = np.repeat(np.arange(len(block)), np.diff(block.offsets))
    first, last = run_offsets[block.terms], run_offsets[block.terms.astype(np.int64) + 1]
    num_runs = last - first
    _expect(num_runs, 0, 256)
    runs = spans(first, num_runs)
    run_pair = np.repeat(np.arange(len(block.terms)), num_runs)
    run_query = pair_query[run_pair]
    contribution = block.weights[run_pair] * run_impacts[runs]
    length = run_lengths[runs]
    kept = _above_threshold(run_query, contribution, length, len(block), budget)
    length = length[kept]
    read = np.bincount(run_pair[kept], weights=length, minlength=len(block.terms))
    starts = list_offsets[block.terms]
    _expect(starts + read, 0, len(list_rows))
    prefixes = [
        list_rows[start : start + count]
        for start, count in zip(starts.tolist(), read.astype(np.int64).tolist(), strict=True)
        if count
    ]
    # Kept runs lie one after another in each list, in the order of the prefixes.
    return (
        np.repeat(run_query[kept], length),
        np.concatenate([np.zeros(0, np.uint32), *prefixes]).astype(np.int64),
        np.repeat(contribution[kept], length),
    )


def _above_threshold(
    query: NDArray[np.int64],
    contribution: NDArray[np.float32],
    length: NDArray[np.uint32],
    num_queries: int,
    budget: int,
) -> NDArray[np.bool_]:
    """The runs to read: for each query the highest steps that fit its budget, and at least
    one. A histogram finds the threshold without sorting the runs."""
    largest = np.full(num_queries, 1e-30, np.float32)  # a query may have no run at all
    np.maximum.at(largest, query, contribution)
    step = (contribution * (THRESHOLDS / largest)[query]).astype(np.int64)
    step = THRESHOLDS - np.minimum(step, THRESHOLDS)  # 0 holds the largest contribution
    width = THRESHOLDS + 1
    histogram = np.bincount(query * width + step, weights=length, minlength=num_queries * width)
    read = np.cumsum(histogram.reshape(num_queries, width), axis=1)
    deepest = np.maximum((read <= budget).sum(axis=1) - 1, np.argmax(read > 0, axis=1))
    return step <= deepest[query]


def score_rows(
    segment: Segment,
    block: SparseRows,
    query: NDArray[np.int64],
    row: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Inner products of stored rows with their queries, sum over t of q_t * impact_t."""
    if not len(row):
        return np.zeros(0, np.float32)
    offsets, terms, impacts = segment.forward
    table = np.zeros(len(block) * NUM_TERMS, np.float32)
    table[np.repeat(np.arange(len(block)), np.diff(block.offsets)) * NUM_TERMS + block.terms] = (
        block.weights
    )
    start = offsets[row]
    length = offsets[row + 1] - start
    _expect(length, 0, NUM_TERMS)
    positions = spans(start, length)
    cell = np.repeat(query * NUM_TERMS, length)
    cell += terms[positions]
    products = table[cell] * impacts[positions]
    return sum_spans(products, length)


def _expect(values: NDArray, low: int, high: int) -> None:
    """Numbers from disk, checked before memory is asked for in proportion to them."""
    if len(values) and not (low <= values.min() and values.max() <= high):
        raise IndexError(f"offsets outside {low}..{high}")


def sum_spans(values: NDArray[np.float32], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
    """Sums of consecutive stretches, of which some may be empty."""
    sums = np.zeros(len(lengths), np.float32)
    filled = lengths > 0
    if filled.any():
        starts = (np.cumsum(lengths) - lengths)[filled]
        sums[filled] = np.add.reduceat(values, starts)
    return sums
