"""The fast local search: impact-ordered lists propose, the stored vectors decide.

A posting (t, row) adds q_t * impact to its row. Lists are sorted by impact, so the largest
contributions of a query are prefixes of its lists: search reads those prefixes down to one
threshold, chosen so that `Effort.postings` are read at most; adds them up by row; and scores
the `Effort.candidates` best rows exactly, from their whole vectors. All queries of a batch
go through each step together, which is what makes plain NumPy fast enough.

Legend: R queries, C candidates of all queries together, V terms.
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
ROW_BITS = 28  # of a key, beside 4 for the query and 32 for the contribution


@dataclass(frozen=True, slots=True)
class Effort:
    """What one query may spend in one segment."""

    postings: int = 8_192
    candidates: int = 128


@dataclass(frozen=True, slots=True)
class Scored:
    """Candidates of a batch, in no order: each belongs to one query."""

    query: NDArray[np.int64]  # [C]
    row: NDArray[np.int64]  # [C]
    score: NDArray[np.float32]  # [C]


def search_segment(
    segment: Segment, queries: Sequence[SparseVector], scale: float, effort: Effort
) -> Scored:
    """Exact scores (to the quantisation) of the rows most likely to be best for each query."""
    assert len(queries) <= BATCH
    assert segment.rows < 1 << ROW_BITS
    block = SparseRows.stack(queries)
    query, row = _propose(segment, block, effort)
    return Scored(query, row, score_rows(segment, block, query, row, scale))


def _propose(
    segment: Segment, block: SparseRows, effort: Effort
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    keys = _contributions(segment, block, effort.postings)
    if not len(keys):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    keys.sort()  # the sort gathers what belongs to one (query, row)
    pair = keys >> np.uint64(32)
    starts = np.flatnonzero(np.diff(pair, prepend=~pair[:1]))
    contribution = (keys & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32)
    partial = np.add.reduceat(contribution, starts)
    pair = pair[starts].astype(np.int64)
    query, row = pair >> ROW_BITS, pair & ((1 << ROW_BITS) - 1)
    if segment.deleted is not None:
        alive = ~segment.deleted[row]
        query, row, partial = query[alive], row[alive], partial[alive]
    bounds = np.searchsorted(query, np.arange(len(block) + 1))
    chosen = [
        low + _largest(partial[low:high], effort.candidates)
        for low, high in itertools.pairwise(bounds)
    ]
    best = np.concatenate(chosen)
    return query[best], row[best]


def _contributions(segment: Segment, block: SparseRows, budget: int) -> NDArray[np.uint64]:
    """query | row | float32 bits of the contribution, for the postings worth reading.

    The bits of a positive float32 order as it does; they only need to travel with the key.
    """
    run_offsets, run_impacts, run_lengths = segment.runs
    list_offsets, list_rows = segment.lists
    # one (query, term) pair for each posting of the queries; each has a list, each list runs
    pair_query = np.repeat(np.arange(len(block)), np.diff(block.offsets))
    first, last = run_offsets[block.terms], run_offsets[block.terms.astype(np.int64) + 1]
    num_runs = last - first
    runs = spans(first, num_runs)
    run_pair = np.repeat(np.arange(len(block.terms)), num_runs)
    run_query = pair_query[run_pair]
    contribution = block.weights[run_pair] * run_impacts[runs]
    length = run_lengths[runs]
    kept = _above_threshold(run_query, contribution, length, len(block), budget)
    read = np.bincount(run_pair[kept], weights=length[kept], minlength=len(block.terms))
    starts = list_offsets[block.terms]
    prefixes = [
        list_rows[start : start + count]
        for start, count in zip(starts.tolist(), read.astype(np.int64).tolist(), strict=True)
        if count
    ]
    if not prefixes:
        return np.zeros(0, np.uint64)
    # Kept runs lie one after another in each list, in the order of the prefixes.
    head = run_query[kept].astype(np.uint64) << np.uint64(32 + ROW_BITS)
    head |= contribution[kept].view(np.uint32)
    keys = np.concatenate(prefixes).astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= np.repeat(head, length[kept])
    return keys


def _above_threshold(
    query: NDArray[np.int64],
    contribution: NDArray[np.float32],
    length: NDArray[np.uint32],
    num_queries: int,
    budget: int,
) -> NDArray[np.bool_]:
    """The runs to read: for each query the highest steps that fit its budget, and at least
    one. A histogram finds the threshold without sorting the runs."""
    largest = np.full(num_queries, np.finfo(np.float32).tiny, np.float32)
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
    scale: float,
) -> NDArray[np.float32]:
    """Inner products of stored rows with their queries: scale * sum over t of q_t * impact_t."""
    if not len(row):
        return np.zeros(0, np.float32)
    offsets, terms, impacts = segment.forward
    table = np.zeros(len(block) * NUM_TERMS, np.float32)
    table[np.repeat(np.arange(len(block)), np.diff(block.offsets)) * NUM_TERMS + block.terms] = (
        block.weights
    )
    start = offsets[row]
    length = offsets[row + 1] - start
    positions = spans(start, length)
    cell = np.repeat(query * NUM_TERMS, length)
    cell += terms[positions]
    products = table[cell] * impacts[positions]
    return sum_spans(products, length) * np.float32(scale)


def sum_spans(values: NDArray[np.float32], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
    """Sums of consecutive stretches, of which some may be empty."""
    sums = np.zeros(len(lengths), np.float32)
    filled = lengths > 0
    if filled.any():
        starts = (np.cumsum(lengths) - lengths)[filled]
        sums[filled] = np.add.reduceat(values, starts)
    return sums


def _largest(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    if len(values) <= count:
        return np.arange(len(values))
    return np.argpartition(values, len(values) - count)[len(values) - count :]
