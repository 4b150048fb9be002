"""The figures of a report on runs.

Enters: runs over the same questions. Leaves: figures, or None where there is not enough to draw: a
frontier needs two runs, a sweep one pruner at two retentions, times a run by one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from skipqa.evaluation.reports.comparison import OWN_PRUNER, sweeps, timed
from skipqa.evaluation.reports.runs import QuestionSet, Run
from skipqa.evaluation.reports.tables import main_runs
from skipqa.figures import Labels, Mark, Series, line_chart, stacked_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTERVALS = "bars and bands are 95 % bootstrap intervals"
UNPRUNED = 0.999  # a retention above this keeps all tokens
WIDE = 4.0  # FLOPs that differ by more than this factor are drawn on a logarithmic axis
SMALL = 0.005  # stages below this fraction of the longest run are drawn as one


def frontier(found: QuestionSet) -> Figure | None:
    """Accuracy over FLOPs."""
    series = [Series(name, [_mark(run) for run in runs]) for name, runs in _lines(found).items()]
    if sum(len(one.marks) for one in series) < 2:
        return None
    spent = [mark.x for one in series for mark in one.marks]
    labels = Labels(
        "Accuracy and compute",
        f"{found.title}; {INTERVALS}; the grey line joins what nothing beats in both",
        "GFLOPs per question, counted",
        "accuracy, %",
    )
    log_x = min(spent) > 0 and max(spent) / min(spent) > WIDE
    return line_chart(series, labels, log_x=log_x, frontier=True)


def sweep(found: QuestionSet) -> Figure | None:
    """Accuracy over the fraction of visual tokens kept, one line per pruner."""
    lines = {name: runs for name, runs in sweeps(found).items() if len(runs) > 1}
    if not lines:
        return None
    series = [
        Series(name, [_mark(run, retention) for retention, run in runs.items()])
        for name, runs in lines.items()
    ]
    whole = [run for retention, run in sweeps(found)[OWN_PRUNER].items() if retention > UNPRUNED]
    accuracy = 100 * whole[0].summary["accuracy"]["mean"] if whole else None
    labels = Labels(
        "Accuracy and visual tokens kept",
        f"{found.title}; {INTERVALS}",
        "retention V'/V",
        "accuracy, %",
    )
    level = None if accuracy is None else ("no pruning", accuracy)
    return line_chart(series, labels, log_x=True, level=level)


def latency(found: QuestionSet) -> Figure | None:
    """Mean milliseconds per question by stage, fast-path questions included, one bar per run."""
    runs = [run for run in main_runs(found) if timed(run)]
    if not runs:
        return None
    stages = _stage_order(runs)
    rows, totals = {}, {}
    for run in runs:
        means = run.summary["stage_ms_mean"]
        name = found.name(run)
        rows[name] = {stage: means.get(stage, 0.0) for stage in stages}
        totals[name] = f"{sum(means.values()):,.0f} ms"
    least = SMALL * max(sum(row.values()) for row in rows.values())
    small = [stage for stage in stages if all(row[stage] < least for row in rows.values())]
    note = f"{found.title}; mean over all questions"
    if small:
        rows = {name: _together(row, small) for name, row in rows.items()}
        note += f"; others: {', '.join(small)}"
    labels = Labels("Where the time goes", note, "ms per question")
    return stacked_bars(rows, labels, totals)


def _together(row: dict[str, float], small: Sequence[str]) -> dict[str, float]:
    others = sum(row[stage] for stage in small)
    return {stage: ms for stage, ms in row.items() if stage not in small} | {"others": others}


def _lines(found: QuestionSet) -> dict[str, list[Run]]:
    """One point per system; SKIP is a line where it was run at several retentions, and so is every
    pruner where nothing but sweeps were run."""
    runs = main_runs(found)
    if all(run.swept for run in runs):
        return {name: list(points.values()) for name, points in sweeps(found).items()}
    lines = {found.name(run): [run] for run in runs}
    own = sweeps(found).get(OWN_PRUNER, {})
    if any(run.swept for run in own.values()) and "skip" in lines:
        lines["skip"] = list(own.values())
    return lines


def _mark(run: Run, x: float | None = None) -> Mark:
    accuracy = run.summary["accuracy"]
    percents = (100 * accuracy[key] for key in ("mean", "low", "high"))
    return Mark(run.summary["flops_mean"] / 1e9 if x is None else x, *percents)


def _stage_order(runs: Sequence[Run]) -> list[str]:
    """In the order in which the stages ran; a drafted question has only the first."""
    longest = max((record["stage_ms"] for run in runs for record in run.records.values()), key=len)
    names = [
        stage for run in runs for record in run.records.values() for stage in record["stage_ms"]
    ]
    return list(dict.fromkeys([*longest, *names]))
