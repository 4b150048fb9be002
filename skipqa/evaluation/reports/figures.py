"""The figures of a report: runs over the same questions enter, canvases leave.

None where there is not enough to draw: a frontier needs two runs, a sweep a pruner at two
retentions, times a run of one process.
"""

from __future__ import annotations

from collections.abc import Sequence

from skipqa.evaluation.reports.runs import OWN_PRUNER, QuestionSet, Run, sweeps, swept, timed
from skipqa.evaluation.reports.tables import main_runs
from skipqa.plot.canvas import Canvas
from skipqa.plot.chart import Mark, Series, plot, stacked_bars

INTERVALS = "bars and bands are 95 % bootstrap intervals"
UNPRUNED = 0.999  # of the tokens: all
WIDE = 4.0  # FLOPs that differ by more than this are drawn on a logarithmic axis


def frontier(found: QuestionSet) -> Canvas | None:
    """Accuracy over FLOPs."""
    series = [Series(name, [_mark(run) for run in runs]) for name, runs in _lines(found).items()]
    if sum(len(one.marks) for one in series) < 2:
        return None
    spent = [mark.x for one in series for mark in one.marks]
    return plot(
        series,
        "Accuracy and compute",
        f"{found.title}; {INTERVALS}; grey: what nothing beats in both",
        "GFLOPs a question, counted",
        "accuracy, %",
        log_x=min(spent) > 0 and max(spent) / min(spent) > WIDE,
        frontier=True,
    )


def sweep(found: QuestionSet) -> Canvas | None:
    """Accuracy over the share of visual tokens kept, a line a pruner."""
    lines = {name: runs for name, runs in sweeps(found).items() if len(runs) > 1}
    if not lines:
        return None
    series = [
        Series(name, [_mark(run, retention) for retention, run in runs.items()])
        for name, runs in lines.items()
    ]
    whole = [run for retention, run in sweeps(found)[OWN_PRUNER].items() if retention > UNPRUNED]
    accuracy = 100 * whole[0].summary["accuracy"]["mean"] if whole else None
    return plot(
        series,
        "Accuracy and visual tokens kept",
        f"{found.title}; {INTERVALS}",
        "retention V'/V",
        "accuracy, %",
        log_x=True,
        level=None if accuracy is None else ("no pruning", accuracy),
    )


def latency(found: QuestionSet) -> Canvas | None:
    """Mean milliseconds a question by stage, fast-path questions included, a bar a run."""
    runs = [run for run in main_runs(found) if timed(run)]
    if not runs:
        return None
    order = _stage_order(runs)
    rows, totals = {}, {}
    for run in runs:
        means = run.summary["stage_ms_mean"]
        name = found.name(run)
        rows[name] = {stage: means.get(stage, 0.0) for stage in order}
        totals[name] = f"{sum(means.values()):,.0f} ms"
    shown = max(sum(row.values()) for row in rows.values()) / 200  # half a percent of the longest
    small = {stage for stage in order if all(row[stage] < shown for row in rows.values())}
    if small:
        for name, row in rows.items():
            rest = sum(row[stage] for stage in small)
            rows[name] = {s: ms for s, ms in row.items() if s not in small} | {"others": rest}
    note = f"{found.title}; mean over all questions"
    if small:
        note += f"; others: {', '.join(stage for stage in order if stage in small)}"
    return stacked_bars(rows, "Where the time goes", note, "ms a question", totals)


def _lines(found: QuestionSet) -> dict[str, list[Run]]:
    """A point a system; SKIP is a line where it was run at several retentions."""
    lines = {found.name(run): [run] for run in main_runs(found)}
    own = sweeps(found).get(OWN_PRUNER, {})
    if any(map(swept, own.values())) and "skip" in lines:
        lines["skip"] = list(own.values())
    return lines


def _mark(run: Run, x: float | None = None) -> Mark:
    accuracy = run.summary["accuracy"]
    percents = (100 * accuracy[key] for key in ("mean", "low", "high"))
    return Mark(run.summary["flops_mean"] / 1e9 if x is None else x, *percents)


def _stage_order(runs: Sequence[Run]) -> list[str]:
    """As the questions went through them; a drafted question knows only the first."""
    longest = max((record["stage_ms"] for run in runs for record in run.records.values()), key=len)
    names = [
        stage for run in runs for record in run.records.values() for stage in record["stage_ms"]
    ]
    return list(dict.fromkeys([*longest, *names]))
