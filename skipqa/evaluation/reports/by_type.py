"""Runs side by side for each type of question, and for all types together.

Enters: runs over one file of questions, by name. Leaves: a header and rows of text, which the
report and the command line each put into a table of their own. No rows if no question has a type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from skipqa.evaluation.records import Record
from skipqa.evaluation.reports.comparison import pair
from skipqa.evaluation.reports.markdown import ABSENT, p_value, percent, points
from skipqa.evaluation.reports.runs import Run
from skipqa.evaluation.summary import interval_of

REFERENCES = ("no-retrieval", "dense")  # what retrieval contributes, and what sparsity costs
ALL = "all types"


def rows_by_type(runs: Mapping[str, Run]) -> tuple[list[str], list[list[str]]]:
    """Several rows per type: accuracy, the differences to each reference that was run, GFLOPs and
    the rate of the fast path; one column per run."""
    records = [record for run in runs.values() for record in run.records.values()]
    types = sorted({record["type"] for record in records if _has_type(record)})
    rows = [row for name in types for row in _block(name, _only(runs, _is_of(name)))]
    if types:
        rows += _block(ALL, _only(runs, _has_type))
    return ["type", "questions", "", *runs], rows


def _has_type(record: Record) -> bool:
    return record.get("type") is not None


def _is_of(name: str) -> Callable[[Record], bool]:
    return lambda record: record.get("type") == name


def _only(runs: Mapping[str, Run], where: Callable[[Record], bool]) -> dict[str, Run]:
    return {name: run.only(where) for name, run in runs.items()}


def _block(type_name: str, runs: Mapping[str, Run]) -> list[list[str]]:
    """The rows of one type, which the first of them names."""
    measures: dict[str, Callable[[Run], str]] = {"accuracy, %": _accuracy}
    for system in REFERENCES:
        if (reference := _plain(system, runs)) is not None:
            measures[f"minus {system}, points"] = _difference_to(reference)
    measures |= {"GFLOPs": _gflops, "fast path, %": _fast_path}
    count = max(len(run.records) for run in runs.values())
    named = [(type_name, f"{count:,}"), *[("", "")] * (len(measures) - 1)]
    return [
        [*first, label, *(measure(run) if run.records else ABSENT for run in runs.values())]
        for first, (label, measure) in zip(named, measures.items(), strict=True)
    ]


def _plain(system: str, runs: Mapping[str, Run]) -> Run | None:
    """The first run of a system with its own pruner and retention."""
    return next((run for run in runs.values() if run.system == system and not run.swept), None)


def _accuracy(run: Run) -> str:
    accuracy = interval_of(list(run.records.values()), "score")
    assert accuracy is not None, "every record has a score"
    return percent(accuracy)


def _difference_to(reference: Run) -> Callable[[Run], str]:
    def difference(run: Run) -> str:
        if run is reference:
            return "reference"
        scores = pair(run, reference)
        if not len(scores):
            return ABSENT
        comparison = scores.compare()
        return f"{points(comparison)}, p {p_value(comparison)}"

    return difference


def _gflops(run: Run) -> str:
    return f"{np.mean([record['flops'] for record in run.records.values()]) / 1e9:.1f}"


def _fast_path(run: Run) -> str:
    return f"{100 * np.mean([r['route'] == 'draft' for r in run.records.values()]):.1f}"
