"""Claims about visual tokens: what QVS keeps, what its saliency measures, what the bound predicts.

Enters: evidence. Leaves: a finding per claim.
"""

from __future__ import annotations

from skipqa.claims.bound import Sweep, constant, tokens_needed
from skipqa.claims.rules.runs import both, needs_runs
from skipqa.claims.verdict import (
    Evidence,
    Finding,
    Verdict,
    by_interval,
    holds_if,
    missing,
    on_every_set,
)
from skipqa.evaluation.reports.comparison import OWN_PRUNER, pair, sweeps
from skipqa.evaluation.reports.markdown import points
from skipqa.evaluation.reports.runs import QuestionSet, Run

EPSILON = 0.05  # accuracy that the bound may lose


def retention(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        own = sweeps(found).get(OWN_PRUNER, {})
        pruned = [run for retention, run in own.items() if 0.095 <= retention <= 0.12]
        whole = [run for retention, run in own.items() if retention > 0.99]
        if not pruned or not whole:
            return None
        scores = pair(pruned[0], whole[0])
        if not scores.second.any():
            return Finding(Verdict.UNDECIDED, f"none of {len(scores):,} right without pruning")
        kept, unpruned = scores.first.mean() / scores.second.mean(), 100 * scores.second.mean()
        comparison = scores.compare(fraction=0.99)
        said = f"{100 * kept:.1f} % of {unpruned:.1f} on {len(scores):,} questions"
        return Finding(by_interval(comparison), said)

    return on_every_set(evidence, rule, needs_runs("skip", "skip-no-pruning"))


def random_pruning(evidence: Evidence) -> Finding:
    def rule(found: QuestionSet) -> Finding | None:
        if (runs := _same_budget(found)) is None:
            return None
        lost = pair(*runs).compare()
        said = (
            f"random pruning loses {points(lost)} points at "
            f"V'/V = {runs[0].retention or 0:.2f} on {lost.count:,} questions"
        )
        return Finding(by_interval(lost, least=0.091), said)

    return on_every_set(evidence, rule, needs_runs("skip", "skip-random-pruning"))


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
    eta, spearman = fidelity["results"]["eta"], fidelity["results"]["spearman"]
    verdict = holds_if(eta <= 0.018 and spearman >= 0.76)
    return Finding(verdict, f"eta {eta:.3f}, Spearman {spearman:.2f}")


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
        return Finding(holds_if(low <= needed <= high), said)

    otherwise = needs_runs("skip", more=" --retention R") + ", at three retentions and unpruned"
    return on_every_set(evidence, rule, otherwise)
