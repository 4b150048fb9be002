"""The fast local search: impact-ordered lists propose candidates, stored vectors score them.

A posting (t, row) adds q_t * impact to the score of its row. Lists are sorted by impact, so the
largest contributions to a query are prefixes of its lists. Search

1. reads these prefixes down to a threshold, chosen so that about `Effort.postings` are read;
2. adds them up in bins, each shared by several rows; the sum of a bin is at least that of each of
   its rows, so a good row is never underestimated;
3. scores the rows of the fullest bins exactly, from their stored vectors.

No step sorts postings, and none touches memory in proportion to the corpus. All queries of a batch
go through each step together, which makes plain NumPy fast enough.

Legend: R queries, B bins per query, C candidates of all queries, V terms.
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

BATCH = 8  # queries per pass; the paper has at most 8 regions
THRESHOLDS = 512  # histogram steps between 0 and the largest contribution of a query
BINS_PER_POSTING = 4  # fewer bins collide more often, more bins cost memory bandwidth
GROUP = 16  # bins represented by their maximum while the fullest bins are selected


@dataclass(frozen=True, slots=True)
class Effort:
    """Bounds on the work of one query in one segment."""

    postings: int
    candidates: int

    @staticmethod
    def for_rows(num_rows: int) -> Effort:
        """Keeps recall@4 above 0.97 on every corpus of benchmarks/index_recall.py and
        benchmarks/index_growth.py. Longer lists need more postings, up to the limit of a list."""
        return Effort(
            postings=min(max(1 << 14, num_rows // 64), 1 << 16),
            candidates=min(max(64, num_rows // 25_000), 256),
        )


@dataclass(frozen=True, slots=True)
class Best:
    """The k best rows per query: highest score first, then lowest row."""

    rows: NDArray[np.int64]  # [R, k]
    scores: NDArray[np.float32]  # [R, k]; 0 if a query has fewer than k hits


def search_segment(
    segment: Segment, queries: Sequence[SparseVector], effort: Effort, k: int
) -> Best:
    """Scores are in units of impacts, and exact for the rows found."""
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
    """The k best rows per query among scored (query, row) pairs, given in any order."""
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
    """(query, row) of each candidate: all rows in the fullest bins of a query."""
    num_bins = 1 << (BINS_PER_POSTING * effort.postings - 1).bit_length()
    query, row, contribution = _postings(segment, block, effort.postings)
    ends = np.searchsorted(query, np.arange(len(block) + 1))
    found = []
    for low, high in itertools.pairwise(ends.tolist()):  # one query's bins fit the CPU cache
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
    """A threshold that at least `candidates` bins reach (if that many are filled) and few more: the
    `candidates`-th largest of the maxima of groups of bins."""
    maxima = total.reshape(-1, GROUP).max(axis=1)
    place = max(0, len(maxima) - candidates)
    return max(float(np.partition(maxima, place)[place]), float(np.finfo(np.float64).tiny))


def _postings(
    segment: Segment, block: SparseRows, budget: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """(query, row, contribution) of the postings worth reading."""
    run_offsets, run_impacts, run_lengths = segment.runs
    list_offsets, list_rows = segment.lists
    # A (query, term) pair per query term; each term has a list, and each list has runs.
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
    # The kept runs of a list are consecutive and in the order of the prefixes.
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
    """The runs to read: for each query the highest steps that fit the budget, and at least one. A
    histogram gives the threshold without sorting the runs."""
    largest = np.full(num_queries, 1e-30, np.float32)  # a query may have no runs
    np.maximum.at(largest, query, contribution)
    step = (contribution * (THRESHOLDS / largest)[query]).astype(np.int64)
    step = THRESHOLDS - np.minimum(step, THRESHOLDS)  # step 0 has the largest contribution
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
    """Inner products of stored rows with their queries: the sum over t of q_t * impact_t."""
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
    """Checks numbers from disk before memory is allocated in proportion to them."""
    if len(values) and not (low <= values.min() and values.max() <= high):
        raise IndexError(f"offsets outside {low}..{high}")


def sum_spans(values: NDArray[np.float32], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
    """Sums of consecutive spans, some of which may be empty."""
    sums = np.zeros(len(lengths), np.float32)
    filled = lengths > 0
    if filled.any():
        starts = (np.cumsum(lengths) - lengths)[filled]
        sums[filled] = np.add.reduceat(values, starts)
    return sums
