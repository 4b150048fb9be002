"""What the records of a run come to: means with intervals, overall, by category, type and subset.

Enters: records as `records.py` makes them. Leaves: plain values for JSON; accuracies lie in [0, 1].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from skipqa.evaluation.records import MEASURED_ALONE, RECALL_AT, Record
from skipqa.evaluation.statistics import mean_interval

COUNTS = ("flops", "tokens", "passages", "edges")  # of a record; the summary has their means
UNIT_INTERVAL = (0.0, 1.0)  # the bounds of a score


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Means over all questions, drafted ones too; accuracies lie in [0, 1]."""
    recalls = (f"recall@{RECALL_AT}", "recall_kept")
    return {
        "num_questions": len(records),
        "accuracy": interval_of(records, "score"),
        **{name: interval_of(records, name) for name in recalls},
        "fast_path_rate": float(np.mean([record["route"] == "draft" for record in records])),
        **{f"{name}_mean": float(np.mean([r[name] for r in records])) for name in COUNTS},
        "cas": cost_adjusted_score(records),
        **_measured_alone(records),
        "accuracy_by_category": intervals_by(records, "score", "category"),
        "accuracy_by_type": intervals_by(records, "score", "type"),
        "accuracy_by_subset": intervals_by(records, "score", "subset"),
        "recall_by_subset": intervals_by(records, recalls[0], "subset"),
    }


def cost_adjusted_score(records: Sequence[Record]) -> float | None:
    """CAS = 100 a^2 / (t + 2 r + 1): accuracy a in [0, 1], thousands of tokens t that the decoder
    read and rounds of retrieval r, each the mean over all questions. A perfect system that reads
    and retrieves nothing has 100. None of records from before these were counted.

    A draft counts as neither: what it costs is in FLOPs.
    """
    if not all("prompt_tokens" in record and "rounds" in record for record in records):
        return None
    accuracy, tokens, rounds = (
        float(np.mean([record[name] for record in records]))
        for name in ("score", "prompt_tokens", "rounds")
    )
    return 100 * accuracy**2 / (tokens / 1_000 + 2 * rounds + 1)


def _measured_alone(records: Sequence[Record]) -> dict[str, Any]:
    """None of it where a question was answered next to others."""
    if not all(name in record for record in records for name in MEASURED_ALONE):
        return {"latency_ms": None, "stage_ms_mean": None, "peak_memory_bytes": None}
    peaks = [peak for record in records if (peak := record["peak_memory_bytes"])]
    return {
        "latency_ms": quantiles([record["latency_ms"] for record in records]),
        "stage_ms_mean": stage_means([record["stage_ms"] for record in records]),
        "peak_memory_bytes": max(peaks, default=None),
    }


def quantiles(values: Sequence[float]) -> dict[str, float]:
    p50, p95 = np.quantile(values, [0.5, 0.95])
    return {"p50": float(p50), "p95": float(p95)}


def stage_means(questions: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each stage over all questions, those too that did not reach it."""
    stages = sorted({name for stage_ms in questions for name in stage_ms})
    return {
        name: float(np.mean([stage_ms.get(name, 0.0) for stage_ms in questions])) for name in stages
    }


def interval_of(records: Sequence[Record], field: str) -> dict[str, Any] | None:
    """Of the records that have the field; None where none has."""
    values = [record[field] for record in records if field in record]
    return dataclasses.asdict(mean_interval(values, bounds=UNIT_INTERVAL)) if values else None


def intervals_by(records: Sequence[Record], field: str, group: str) -> dict[str, Any]:
    """One for each category, type or subset, of the records in it that have the field."""
    names = sorted({name for record in records for name in names_in(record, group)})
    parts = {name: [r for r in records if name in names_in(r, group)] for name in names}
    found = {name: interval_of(part, field) for name, part in parts.items()}
    return {name: interval for name, interval in found.items() if interval is not None}


def names_in(record: Record, group: str) -> list[str]:
    """The record's category or type, or the subsets it is in."""
    names = record.get(group) or []
    return [names] if isinstance(names, str) else names
