"""Claims about visual tokens: what QVS keeps, what its saliency measures, what the bound predicts.

Enters: evidence. Leaves: a finding per claim.
"""

from __future__ import annotations

from collections.abc import Mapping

from skipqa.claims.bound import Sweep, constant, tokens_needed
from skipqa.claims.rules.runs import CROWDS, both, needs_runs
from skipqa.claims.verdict import (
    Evidence,
    Finding,
    Verdict,
    by_interval,
    from_results,
    from_runs,
    holds_if,
    missing,
    on_strongest_set,
)
from skipqa.evaluation.reports.comparison import OWN_PRUNER, pair, sweeps
from skipqa.evaluation.reports.markdown import points
from skipqa.evaluation.reports.runs import QuestionSet, Run

EPSILON = 0.05  # accuracy that the bound may lose


def retention(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        if (runs := _pruned_and_whole(found)) is None:
            return None
        scores = pair(*runs)
        if not scores.second.any():
            said = f"none of {len(scores):,} right without pruning"
            return from_runs(Verdict.UNDECIDED, said, len(scores), *runs)
        kept, unpruned = scores.first.mean() / scores.second.mean(), 100 * scores.second.mean()
        comparison = scores.compare(fraction=0.99)
        said = (
            f"{100 * kept:.1f} % of {unpruned:.1f} on {len(scores):,} questions, "
            f"{points(comparison)} points from 99 % of it"
        )
        return from_runs(by_interval(comparison), said, len(scores), *runs)

    return on_strongest_set(evidence, rule, needs_runs("skip", "skip-no-pruning"), CROWDS)


def _pruned_and_whole(found: QuestionSet) -> tuple[Run, Run] | None:
    """SKIP with about the paper's 11 % of the tokens, and with all; of a sweep if need be."""
    if (runs := both(found, "skip", "skip-no-pruning")) is not None and _eleven(runs[0].retention):
        return runs
    own = sweeps(found).get(OWN_PRUNER, {})
    pruned = [run for retention, run in own.items() if _eleven(retention)]
    whole = [run for retention, run in own.items() if retention > 0.99]
    return (pruned[0], whole[0]) if pruned and whole else None


def _eleven(retention: float | None) -> bool:
    return retention is not None and 0.095 <= retention <= 0.12


def random_pruning(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        if (runs := _same_budget(found)) is None:
            return None
        lost = pair(*runs).compare()
        said = (
            f"random pruning loses {points(lost)} points at "
            f"V'/V = {runs[0].retention or 0:.2f} on {lost.count:,} questions"
        )
        return from_runs(by_interval(lost, least=0.091), said, lost.count, *runs)

    return on_strongest_set(evidence, rule, needs_runs("skip", "skip-random-pruning"), CROWDS)


def _same_budget(found: QuestionSet) -> tuple[Run, Run] | None:
    """QVS and random pruning at the retention nearest to the paper's 11 %."""
    if (runs := both(found, "skip", "skip-random-pruning")) is not None:
        return runs
    lines = sweeps(found)
    own, drawn = lines.get(OWN_PRUNER, {}), lines.get("random", {})
    shared = sorted(own.keys() & drawn.keys(), key=lambda retention: abs(retention - 0.11))
    return (own[shared[0]], drawn[shared[0]]) if shared else None


def fidelity(evidence: Evidence) -> Finding:
    if (fidelity := evidence.benchmark("fidelity")) is None:
        return missing("needs `skipqa theory fidelity --results benchmarks/results`")
    found = fidelity["results"]
    eta, spearman = found["eta"], found["spearman"]
    verdict = holds_if(eta <= 0.018 and spearman >= 0.76)
    said = f"eta {eta:.3f} ({found['eta_calibrated']:.3f} calibrated), Spearman {spearman:.2f}"
    count = found["num_questions"]
    said = f"{said} on {count:,} questions by the {found['proxy']}"
    return from_results(verdict, said, fidelity, count)


def bound(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        own = sweeps(found).get(OWN_PRUNER, {})
        available = next((run.available for run in own.values() if run.available), None)
        if available is None or len(own) < 3 or max(own) <= 0.99:
            return None
        accuracy = {
            round(retention * available): run.summary["accuracy"]["mean"]
            for retention, run in own.items()
        }
        needed = Sweep(available, accuracy).needed(EPSILON)
        bound = tokens_needed(available, EPSILON, constant(1, 0.01))
        low, high = bound.likely
        said = (
            f"the bound asks for {bound.count} of {available} ({low} to {high} likely), the sweep "
            f"for {needed} of {', '.join(map(str, sorted(accuracy)))}"
        )
        runs = list(own.values())
        count = len(runs[0].records)
        said = f"{said} tokens on {count:,} questions"
        return from_runs(_predicted(own, available, needed, bound.likely), said, count, *runs)

    otherwise = needs_runs("skip", more=" --retention R") + ", at three retentions and unpruned"
    return on_strongest_set(evidence, rule, otherwise, CROWDS)


def _predicted(
    swept: Mapping[float, Run], available: int, needed: int, likely: tuple[int, int]
) -> Verdict:
    """Outside the likely range the bound fails only where the interval of the deciding point says
    so: fewer tokens that surely lose no more than epsilon, or enough of them that surely do."""
    if likely[0] <= needed <= likely[1]:
        return Verdict.HOLDS
    runs = {round(retention * available): run for retention, run in swept.items()}
    decides = needed if needed < likely[0] else max(kept for kept in runs if kept < needed)
    lost = pair(runs[max(runs)], runs[decides]).compare()
    sure = lost.high <= EPSILON if needed < likely[0] else lost.low > EPSILON
    return Verdict.FAILS if sure else Verdict.UNDECIDED
