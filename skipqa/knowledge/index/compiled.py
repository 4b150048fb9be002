"""The same search as `search`, compiled with Numba: one query at a time, no temporary arrays.

The steps are those of `search`. This version is several times faster once loaded, but loading it
takes longer than it saves on one question, so it is optional. Compiled code does not check array
bounds, so every number from disk is checked first.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from skipqa.knowledge.index.format import Segment
from skipqa.knowledge.index.search import BINS_PER_POSTING, GROUP, THRESHOLDS, Best, Effort
from skipqa.knowledge.vectors import NUM_TERMS, SparseRows
from skipqa.types import SparseVector

NO_ROWS: NDArray[np.bool_] = np.zeros(0, bool)


class CompiledSearch:
    """Called like `search.search_segment`; each thread that calls it keeps a table of weights."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def __call__(
        self, segment: Segment, queries: Sequence[SparseVector], effort: Effort, k: int
    ) -> Best:
        block = SparseRows.stack(queries)
        best = Best(np.zeros((len(block), k), np.int64), np.zeros((len(block), k), np.float32))
        num_bins = 1 << (BINS_PER_POSTING * effort.postings - 1).bit_length()
        intact = _search(
            *(block.offsets, block.terms, block.weights),
            *(*segment.runs, *segment.lists, *segment.forward),
            NO_ROWS if segment.deleted is None else segment.deleted,
            *(segment.rows, effort.postings, effort.candidates, num_bins),
            *(self._table(), best.rows, best.scores),
        )
        if not intact:
            self._of_thread.__dict__.clear()
            raise IndexError("an offset points outside its file")
        return best

    def _table(self) -> NDArray[np.float32]:
        """The weight of every term in the current query, all zero between queries. It is kept
        because allocating it costs more than resetting the few terms of a query."""
        if not hasattr(self._of_thread, "table"):
            self._of_thread.table = np.zeros(NUM_TERMS, np.float32)
        return self._of_thread.table


@njit(cache=True, nogil=True)
def _search(  # type: ignore[no-untyped-def]
    q_offsets, q_terms, q_weights,
    run_offsets, run_impacts, run_lengths,
    list_offsets, list_rows,
    offsets, terms, impacts,
    deleted, num_rows, budget, candidates, num_bins,
    table, out_rows, out_scores,
):  # fmt: skip
    """False if a number from disk is invalid. `table` is all zero before and after."""
    mask = num_bins - 1
    table_size = 64  # of the set of rows seen; a power of two
    while table_size < 4 * candidates:
        table_size *= 2
    bins = np.empty(num_bins, np.float32)
    maxima = np.zeros(num_bins // GROUP, np.float32)
    histogram = np.zeros(THRESHOLDS + 1, np.int64)
    for query in range(len(q_offsets) - 1):
        q_low, q_high = q_offsets[query], q_offsets[query + 1]
        read = np.zeros(q_high - q_low, np.int64)
        if not _choose_prefixes(
            q_terms[q_low:q_high], q_weights[q_low:q_high], run_offsets, run_impacts,
            run_lengths, list_offsets, len(list_rows), budget, histogram, read,
        ):  # fmt: skip
            return False
        # Add the prefixes up in bins.
        bins[:] = 0
        for pair in range(q_low, q_high):
            term, weight = q_terms[pair], q_weights[pair]
            table[term] = weight
            position, run = list_offsets[term], run_offsets[term]
            stop = position + read[pair - q_low]
            while position < stop:
                contribution = weight * run_impacts[run]
                end = min(stop, position + run_lengths[run])
                for i in range(position, end):
                    bins[list_rows[i] & mask] += contribution
                position, run = end, run + 1
        for group in range(len(maxima)):
            largest = np.float32(0)
            for i in range(group * GROUP, (group + 1) * GROUP):
                largest = max(largest, bins[i])
            maxima[group] = largest
        place = max(0, len(maxima) - candidates)
        floor = max(np.partition(maxima, place)[place], np.finfo(np.float32).tiny)
        # Score each row of a full bin once, and keep the k best.
        seen = np.full(table_size, -1, np.int64)
        num_seen, num_kept = 0, 0
        for pair in range(q_low, q_high):
            start = list_offsets[q_terms[pair]]
            for i in range(start, start + read[pair - q_low]):
                row = np.int64(list_rows[i])
                if bins[row & mask] < floor:
                    continue
                if 2 * num_seen > len(seen):
                    seen = _grown(seen)
                if not _insert(seen, row):
                    continue
                num_seen += 1
                if row >= num_rows:
                    return False
                low, high = offsets[row], offsets[row + 1]
                if not 0 <= low <= high <= len(terms):
                    return False
                if len(deleted) and deleted[row]:
                    continue
                score = np.float32(0)
                for j in range(low, high):
                    if terms[j] < NUM_TERMS:
                        score += table[terms[j]] * impacts[j]
                num_kept = _keep(out_rows[query], out_scores[query], num_kept, row, score)
        for pair in range(q_low, q_high):
            table[q_terms[pair]] = 0
    return True


@njit(cache=True, nogil=True)
def _choose_prefixes(  # type: ignore[no-untyped-def]
    q_terms, q_weights, run_offsets, run_impacts, run_lengths,
    list_offsets, num_listed, budget, histogram, read,
):  # fmt: skip
    """How much of each list to read; False if the offsets are invalid."""
    largest = np.float32(0)
    for pair in range(len(q_terms)):
        first, last = run_offsets[q_terms[pair]], run_offsets[q_terms[pair] + 1]
        if not 0 <= first <= last <= len(run_impacts):
            return False
        if first < last:  # the first run of a list has the largest impact
            largest = max(largest, q_weights[pair] * run_impacts[first])
    if largest == 0:
        return True
    histogram[:] = 0
    for pair in range(len(q_terms)):
        for run in range(run_offsets[q_terms[pair]], run_offsets[q_terms[pair] + 1]):
            step = _step(q_weights[pair] * run_impacts[run], largest)
            histogram[step] += run_lengths[run]
    deepest, total = -1, 0
    for step in range(THRESHOLDS + 1):
        total += histogram[step]
        if total > budget and deepest >= 0:
            break
        if total > 0:
            deepest = step
    for pair in range(len(q_terms)):
        first, last = run_offsets[q_terms[pair]], run_offsets[q_terms[pair] + 1]
        count = np.int64(0)
        for run in range(first, last):
            if _step(q_weights[pair] * run_impacts[run], largest) > deepest:
                break
            count += run_lengths[run]
        start = list_offsets[q_terms[pair]]
        if not 0 <= start <= start + count <= num_listed:
            return False
        read[pair] = count
    return True


@njit(cache=True, nogil=True, inline="always")
def _step(contribution, largest):  # type: ignore[no-untyped-def]
    return THRESHOLDS - min(THRESHOLDS, int(contribution * (THRESHOLDS / largest)))


@njit(cache=True, nogil=True)
def _insert(seen, row):  # type: ignore[no-untyped-def]
    """Inserts by open addressing; False if the row was already present."""
    mask = len(seen) - 1
    slot = (row * 0x9E3779B1 >> 7) & mask
    while seen[slot] >= 0:
        if seen[slot] == row:
            return False
        slot = (slot + 1) & mask
    seen[slot] = row
    return True


@njit(cache=True, nogil=True)
def _grown(seen):  # type: ignore[no-untyped-def]
    larger = np.full(2 * len(seen), -1, np.int64)
    for row in seen:
        if row >= 0:
            _insert(larger, row)
    return larger


@njit(cache=True, nogil=True, inline="always")
def _keep(rows, scores, count, row, score):  # type: ignore[no-untyped-def]
    """Inserts into the k best: highest score first, then lowest row."""
    k = len(rows)
    if count == k and (score, -row) <= (scores[k - 1], -rows[k - 1]):
        return count
    place = min(count, k - 1)
    while place > 0 and (score, -row) > (scores[place - 1], -rows[place - 1]):
        scores[place], rows[place] = scores[place - 1], rows[place - 1]
        place -= 1
    scores[place], rows[place] = score, row
    return min(count + 1, k)
