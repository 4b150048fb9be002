"""Measures the latency and recall of an index, for `skipqa index bench`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from skipqa.errors import UserError
from skipqa.knowledge.index.encode import Report
from skipqa.knowledge.index.index import Index
from skipqa.knowledge.vectors import sum_duplicates
from skipqa.types import Hit, SparseVector

REGIONS = 8


def measure(uri: str, num_queries: int, k: int, report: Report) -> dict[str, Any]:
    index = Index.open(uri)
    if not len(index):
        raise UserError(f"the index at {index.folder} is empty")
    exact = Index.open(f"exact:{index.folder}")
    queries = own_queries(index, num_queries)
    oracle = []
    for start in range(0, len(queries), REGIONS):
        report("exact search", start, len(queries))
        oracle += exact.search(queries[start : start + REGIONS], k)
    single = timed([lambda q=query: index.search([q], k) for query in queries])  # type: ignore[misc]
    groups = [queries[i : i + REGIONS] for i in range(0, len(queries) - REGIONS + 1, REGIONS)]
    regions = timed([lambda g=group: index.search(g, k) for group in groups])  # type: ignore[misc]
    return {
        "index": uri,
        "passages": len(index),
        "queries": len(queries),
        "terms_per_query": round(float(np.mean([len(query) for query in queries])), 1),
        f"recall_at_{k}": recall(index.search(queries, k), oracle),
        "one_query_ms": percentiles(single),
        f"{REGIONS}_region_queries_ms": percentiles(regions),
    }


def own_queries(index: Index, count: int, seed: int = 2026) -> list[SparseVector]:
    """Queries that each combine all terms of two passages, as a region combines concepts."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, index.bases[-1], (count, 2)).tolist()
    return [mixed([index.vector(row) for row in pair]) for pair in pairs]


def mixed(vectors: Sequence[SparseVector]) -> SparseVector:
    return sum_duplicates(
        np.concatenate([vector.terms for vector in vectors]),
        np.concatenate([vector.weights for vector in vectors]),
    )


def recall(found: Sequence[Sequence[Hit]], oracle: Sequence[Sequence[Hit]]) -> float:
    """The fraction of the oracle's hits that were found. A passage that scores the same as the
    oracle's last hit counts too, because the order of ties is arbitrary."""
    fractions = []
    for hits, best in zip(found, oracle, strict=True):
        if best:
            floor = best[-1].score * (1 - 1e-5)
            fractions.append(min(1.0, sum(hit.score >= floor for hit in hits) / len(best)))
    return round(float(np.mean(fractions)), 4) if fractions else 1.0


def timed(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Milliseconds of each call, after one warm-up call."""
    calls[0]()
    times = []
    for call in calls:
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e3)
    return times


def percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    return {
        name: round(float(np.percentile(milliseconds, fraction)), 3)
        for name, fraction in (("p50", 50), ("p95", 95), ("p99", 99))
    }
