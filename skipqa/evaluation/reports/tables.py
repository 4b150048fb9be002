"""The tables of a report on runs.

Enters: runs over the same questions. Leaves: Markdown; a table without data is an empty string.
Every number is computed from the runs' records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from skipqa.evaluation.records import Record
from skipqa.evaluation.reports.by_type import rows_by_type
from skipqa.evaluation.reports.comparison import (
    pair,
    same_machine,
    seed_accuracies,
    seed_groups,
    sweeps,
    timed,
)
from skipqa.evaluation.reports.markdown import ABSENT, p_value, percent, points, table, times
from skipqa.evaluation.reports.runs import QuestionSet, Run
from skipqa.evaluation.statistics import across_seeds, bins
from skipqa.evaluation.summary import interval_of, names_in

RECALL = "recall@4"
# The paper's ablation table by our system names: the paper's row, accuracy (%) and TFLOPs
PAPER_ABLATIONS = {
    "skip": ("Full SKIP", 63.2, 0.42),
    "skip-random-pruning": ("− QVS (random pruning)", 54.1, 0.42),
    "skip-no-pruning": ("− QVS (no pruning)", 62.4, 1.38),
    "skip-global-retrieval": ("− RCSR (→ global retrieval)", 59.7, 0.48),
    "skip-dense-fusion": ("− BSCA (→ dense)", 62.9, 1.21),
    "skip-fixed-budget": ("− DBC (fixed V' = 64, K' = 8)", 61.8, 0.46),
    "skip-no-draft": ("− SKV (no fast path)", 63.1, 0.71),
    "qvs-only": ("QVS only", 58.3, 0.95),
    "rcsr-only": ("RCSR only", 60.1, 1.05),
    "bsca-only": ("BSCA only", 60.8, 0.88),
}


def main_runs(found: QuestionSet) -> list[Run]:
    """SKIP and what it is compared with; ablations and sweeps have their own tables."""
    elsewhere = {run.folder for run in ablations(found) if run.system != "skip"}
    runs = [run for run in found.runs if run.folder not in elsewhere and not run.swept]
    return runs or list(found.runs)


def ablations(found: QuestionSet) -> list[Run]:
    """In the paper's order, SKIP first; empty without a run of SKIP."""
    plain = [run for run in found.runs if not run.swept]
    runs = [run for name in PAPER_ABLATIONS for run in plain if run.system == name]
    return runs if len(runs) > 1 and runs[0].system == "skip" else []


def main_table(found: QuestionSet) -> str:
    """One row per run, compared with the reference on the questions that both answered. CAS is
    accuracy at a price in tokens and rounds of retrieval (`summary.cost_adjusted_score`)."""
    reference = found.name(found.reference)
    header = [
        *("system", "accuracy, %", f"minus {reference}, points", "p", RECALL, "GFLOPs"),
        *("FLOPs, times fewer", "CAS", "latency p50 / p95, ms", "times faster", "peak memory, GB"),
        *("V'", "K'", "fast path, %", "questions"),
    ]
    return table(header, [_main_row(found, run) for run in main_runs(found)])


def _main_row(found: QuestionSet, run: Run) -> list[str]:
    summary, latency = run.summary, run.summary["latency_ms"]
    peak = summary["peak_memory_bytes"]
    row = [
        found.name(run),
        percent(summary["accuracy"]),
        *("reference", ABSENT),
        _recall(run),
        f"{summary['flops_mean'] / 1e9:.1f}",
        "1",
        ABSENT if summary["cas"] is None else f"{summary['cas']:.1f}",
        f"{latency['p50']:,.0f} / {latency['p95']:,.0f}" if latency else ABSENT,
        "1" if latency else ABSENT,
        ABSENT if peak is None else f"{peak / 1e9:.2f}",
        f"{summary['tokens_mean']:.1f}",
        f"{summary['passages_mean']:.1f}",
        f"{100 * summary['fast_path_rate']:.1f}",
        f"{summary['num_questions']:,}",
    ]
    if run is not found.reference:
        scores = pair(run, found.reference)
        comparison = scores.compare()
        row[2], row[3] = points(comparison), p_value(comparison)
        if len(scores) < max(len(run.records), len(found.reference.records)):
            row[2] += f", {len(scores):,} shared"
        row[6] = times(pair(run, found.reference, "flops").ratio)
        row[9] = _times_faster(run, found.reference)
    return row


def _times_faster(run: Run, reference: Run) -> str:
    if not timed(run, reference):
        return ABSENT
    if not same_machine(run, reference):
        return "another machine"
    return times(pair(run, reference, "latency_ms").ratio)


def _recall(run: Run) -> str:
    """Over the questions that have gold passages, and how many these are."""
    recalls = list(run.column(RECALL).values())
    return f"{100 * np.mean(recalls):.1f} of {len(recalls):,}" if recalls else ABSENT


def ablation_table(found: QuestionSet) -> str:
    """What each part of SKIP contributes, next to the paper's own figures."""
    runs = ablations(found)
    if not runs:
        return ""
    whole, rows = runs[0], []
    for run in runs:
        label, accuracy, tflops = PAPER_ABLATIONS[run.system]
        scores = pair(run, whole)
        comparison = scores.compare() if run is not whole and len(scores) else None
        rows.append(
            [
                f"{label} (`{run.system}`)",
                percent(run.summary["accuracy"]),
                ABSENT if comparison is None else points(comparison),
                ABSENT if comparison is None else p_value(comparison),
                _recall(run),
                f"{run.summary['flops_mean'] / 1e9:.1f}",
                f"{run.summary['latency_ms']['p50']:,.0f}" if timed(run) else ABSENT,
                f"{accuracy:.1f}",
                f"{accuracy - PAPER_ABLATIONS['skip'][1]:+.1f}",
                f"{tflops:.2f}",
            ]
        )
    header = [
        *("configuration", "accuracy, %", "minus SKIP, points", "p", RECALL, "GFLOPs", "p50, ms"),
        *("paper: accuracy, %", "paper: minus SKIP", "paper: TFLOPs"),
    ]
    return table(header, rows)


def sweep_table(found: QuestionSet) -> str:
    """Accuracy of each pruner at each retention."""
    lines = {name: runs for name, runs in sweeps(found).items() if len(runs) > 1}
    retentions = sorted({retention for runs in lines.values() for retention in runs})
    rows = [
        [
            name,
            *(percent(runs[r].summary["accuracy"]) if r in runs else ABSENT for r in retentions),
        ]
        for name, runs in lines.items()
    ]
    return table(["pruner", *(f"V'/V = {r:.3g}" for r in retentions)], rows) if rows else ""


def seed_table(found: QuestionSet) -> str:
    """Runs that differ in the seed alone, on the questions that all of them answered."""
    rows = []
    for group in seed_groups(found.runs):
        accuracies, shared = seed_accuracies(group)
        if not shared:
            continue
        spread = across_seeds(100 * np.array(accuracies))
        rows.append(
            [
                group[0].system,
                ", ".join(str(run.seed) for run in group),
                ", ".join(f"{100 * accuracy:.1f}" for accuracy in accuracies),
                f"{spread.mean:.2f} ± {spread.deviation:.2f}",
                f"{spread.spread:.2f}",
                f"{shared:,}",
            ]
        )
    header = ["system", "seeds", "accuracy, %", "mean ± deviation", "largest − smallest", "shared"]
    return table(header, rows) if rows else ""


def category_table(found: QuestionSet) -> str:
    return _accuracies_by(found, "category", lambda record: names_in(record, "category"))


def popularity_table(found: QuestionSet) -> str:
    """By quartiles of the questions' popularity, or by name where popularity is not a number."""
    values = [
        record["popularity"]
        for run in found.runs
        for record in run.records.values()
        if record.get("popularity") is not None
    ]
    if not all(isinstance(value, (int, float)) for value in values):
        return _accuracies_by(found, "popularity", lambda record: names_in(record, "popularity"))
    edges = np.quantile(values or [0], [0.25, 0.5, 0.75])
    if all(float(value).is_integer() for value in values):
        edges = np.ceil(edges)  # the same quartiles, at values that occur
    edges = sorted(set(edges.tolist()))

    def quartile(record: Record) -> list[str]:
        value = record.get("popularity")
        return [] if value is None else bins([value], edges)

    return _accuracies_by(found, "popularity", quartile)


def type_table(found: QuestionSet) -> str:
    """With ablations. Of the questions that have a type."""
    header, rows = rows_by_type({found.name(run): run for run in _with_ablations(found)})
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return table(header, cells) if cells else ""


def _with_ablations(found: QuestionSet) -> list[Run]:
    return [*main_runs(found), *(run for run in ablations(found) if run.system != "skip")]


def subset_table(found: QuestionSet) -> str:
    """With ablations, whose retrieval differs. A question in several subsets counts in each."""

    def subsets(record: Record) -> list[str]:
        return names_in(record, "subset")

    return _accuracies_by(found, "subset", subsets, _with_ablations(found), recall=True)


def _accuracies_by(
    found: QuestionSet,
    name: str,
    groups_of: Callable[[Record], list[str]],
    runs: Sequence[Run] | None = None,
    *,
    recall: bool = False,
) -> str:
    """One row per group, one column per run: accuracy, and recall if the records have it."""
    runs = runs or main_runs(found)
    placed = [_placed(run, groups_of) for run in runs]
    columns = [_accuracies(groups, recall) for groups in placed]
    rows = []
    for group in sorted({group for groups in placed for group in groups}, key=_natural):
        count = max(len(groups.get(group, ())) for groups in placed)
        shown = group.replace("|", "\\|")
        rows.append([shown, *(column.get(group, ABSENT) for column in columns), f"{count:,}"])
    header = [name, *(found.name(run) for run in runs), "questions"]
    return table(header, rows) if rows else ""


def _placed(run: Run, groups_of: Callable[[Record], list[str]]) -> dict[str, list[Record]]:
    placed: dict[str, list[Record]] = {}
    for record in run.records.values():
        for group in groups_of(record):
            placed.setdefault(group, []).append(record)
    return placed


def _accuracies(groups: Mapping[str, Sequence[Record]], recall: bool) -> dict[str, str]:
    cells = {}
    for group, records in groups.items():
        accuracy = interval_of(records, "score")
        assert accuracy is not None, "every record has a score"
        cells[group] = percent(accuracy)
        if recall and (recalled := interval_of(records, RECALL)) is not None:
            cells[group] += f"; {RECALL} {100 * recalled['mean']:.1f}"
    return cells


def _natural(text: str) -> tuple[float, bool, str]:
    """Numbers by their size: 2 before 10, "<5" before "5-10" before ">=10"."""
    try:
        number = float(text.lstrip("<>=").partition("-")[0])
    except ValueError:
        number = np.inf
    return number, not text.startswith("<"), text
