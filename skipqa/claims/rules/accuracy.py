"""Claims about the whole system's accuracy: against dense baselines, and of its variants.

Enters: evidence. Leaves: a finding per claim.
"""

from __future__ import annotations

from skipqa.claims.rules.runs import at_least_as_good, both, in_subset, needs_runs, strongest_dense
from skipqa.claims.verdict import Evidence, Finding, Verdict, by_interval, holds_if, on_every_set
from skipqa.evaluation.reports.comparison import pair, same_machine, timed
from skipqa.evaluation.reports.markdown import p_value, points, times
from skipqa.evaluation.reports.runs import QuestionSet


def accuracy_and_cost(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        if (runs := strongest_dense(found)) is None:
            return None
        accuracy = pair(*runs).compare()
        flops = pair(*runs, "flops").ratio
        verdict = min(by_interval(accuracy), holds_if(flops >= 4.07))
        said = (
            f"{points(accuracy)} points against {found.name(runs[1])} on {accuracy.count:,} "
            f"questions, {times(flops)} fewer FLOPs"
        )
        if not timed(*runs):
            return Finding(min(verdict, Verdict.UNDECIDED), said + ", not timed")
        if not same_machine(*runs):
            return Finding(min(verdict, Verdict.UNDECIDED), said + ", timed on other machines")
        latency = pair(*runs, "latency_ms").ratio
        return Finding(min(verdict, holds_if(latency >= 2.69)), f"{said}, {times(latency)} faster")

    finding = on_every_set(evidence, rule, needs_runs("skip", "dense"))
    if (pathway := evidence.benchmark("pathway")) is None:
        return finding
    summary = pathway["results"]["summary"]
    rate = str(pathway["results"]["load"]["draft_rate"])
    shapes = ", ".join(
        f"{name}: {times(flops['times_fewer'])} fewer FLOPs, "
        f"{times(summary['latency_ms'][name][rate]['times_faster'])} faster"
        for name, flops in summary["flops"].items()
    )
    return Finding(
        finding.verdict, f"{finding.said}. At 7B shapes with random weights, no accuracy: {shapes}"
    )


def significance(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        if (runs := strongest_dense(found)) is None:
            return None
        comparison = pair(*runs).compare()
        verdict = holds_if(comparison.p_value < 0.001 and comparison.difference > 0)
        said = f"{points(comparison)} points against {found.name(runs[1])}, p"
        value = p_value(comparison)
        return Finding(verdict, f"{said} {value if value.startswith('≤') else '= ' + value}")

    return on_every_set(evidence, rule, needs_runs("skip", "dense"))


def without_retrieval(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        runs = both(found, "skip-nr", "dense") if "vqav2" in found.title.lower() else None
        return None if runs is None else at_least_as_good(found, runs)

    return on_every_set(evidence, rule, needs_runs("skip-nr", "dense") + " of VQAv2")


def multihop(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        runs = both(found, "skip-iter", "dense")
        return None if runs is None else at_least_as_good(found, runs, in_subset("multihop"))

    return on_every_set(
        evidence, rule, needs_runs("skip-iter", "dense") + " with a subset `multihop`"
    )
