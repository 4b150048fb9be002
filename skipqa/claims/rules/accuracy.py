"""Claims about the whole system's accuracy: against dense baselines, and of its variants.

Enters: evidence. Leaves: a finding per claim.
"""

from __future__ import annotations

from dataclasses import replace

from skipqa.claims.rules.runs import (
    KNOWLEDGE,
    at_least_as_good,
    both,
    in_subset,
    needs_runs,
    strongest_dense,
)
from skipqa.claims.verdict import (
    Evidence,
    Finding,
    Verdict,
    by_interval,
    from_results,
    from_runs,
    holds_if,
    on_strongest_set,
    strongest,
)
from skipqa.evaluation.reports.comparison import pair, same_machine, timed
from skipqa.evaluation.reports.markdown import p_value, points, times
from skipqa.evaluation.reports.runs import QuestionSet
from skipqa.evaluation.statistics import Comparison


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
            verdict, said = min(verdict, Verdict.UNDECIDED), said + ", not timed"
        elif not same_machine(*runs):
            verdict, said = min(verdict, Verdict.UNDECIDED), said + ", timed on other machines"
        else:
            latency = pair(*runs, "latency_ms").ratio
            verdict = min(verdict, holds_if(latency >= 2.69))
            said = f"{said}, {times(latency)} faster"
        return from_runs(verdict, said, accuracy.count, *runs)

    finding = on_strongest_set(evidence, rule, needs_runs("skip", "dense"), KNOWLEDGE)
    if (pathway := evidence.benchmark("pathway", uses=())) is None:
        return finding
    summary = pathway["results"]["summary"]
    rate = str(pathway["results"]["load"]["draft_rate"])
    shapes = ", ".join(
        f"{name}: {times(flops['times_fewer'])} fewer FLOPs, "
        f"{times(summary['latency_ms'][name][rate]['times_faster'])} faster"
        for name, flops in summary["flops"].items()
    )
    said = f"{finding.said}. At 7B shapes with random weights, no accuracy: {shapes}"
    return replace(finding, said=said)


def significance(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        if (runs := strongest_dense(found)) is None:
            return None
        comparison = pair(*runs).compare()
        verdict = holds_if(comparison.p_value < 0.001 and comparison.difference > 0)
        said = f"{points(comparison)} points against {found.name(runs[1])}, p"
        value = p_value(comparison)
        said = f"{said} {value if value.startswith('≤') else '= ' + value}"
        return from_runs(verdict, said, comparison.count, *runs)

    return on_strongest_set(evidence, rule, needs_runs("skip", "dense"), KNOWLEDGE)


def without_retrieval(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        runs = both(found, "skip-nr", "dense") if "vqav2" in found.title.lower() else None
        return None if runs is None else at_least_as_good(found, runs)

    return on_strongest_set(evidence, rule, needs_runs("skip-nr", "dense") + " of VQAv2")


def multihop(evidence: Evidence) -> Finding:
    """By the benchmark or by runs, whichever has more questions."""

    def rule(found: QuestionSet) -> Finding | None:
        runs = both(found, "skip-iter", "dense")
        return None if runs is None else at_least_as_good(found, runs, in_subset("multihop"))

    def benchmark() -> Finding | None:
        if (measured := evidence.benchmark("multihop")) is None:
            return None
        ways = measured["results"]["multihop"]
        gain = Comparison(**ways["two rounds"]["more than dense"])
        iterated, dense = (100 * ways[way]["accuracy"]["mean"] for way in ("two rounds", "dense"))
        said = (
            f"{iterated:.1f} against {dense:.1f}, {points(gain)} points on {gain.count:,} questions"
        )
        return from_results(by_interval(gain), said, measured, gain.count, "multihop")

    needed = needs_runs("skip-iter", "dense") + " with a subset `multihop`"
    return strongest([*map(rule, evidence.sets), benchmark()], needed)
