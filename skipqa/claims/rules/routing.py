"""Claims about routing: the fast path, the verifier, the adaptive budget.

Enters: evidence. Leaves: a finding per claim.
"""

from __future__ import annotations

from skipqa.claims.rules.runs import KNOWLEDGE, both, needs_runs
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
    strongest,
)
from skipqa.evaluation.reports.comparison import pair
from skipqa.evaluation.reports.markdown import bounds, points
from skipqa.evaluation.reports.runs import QuestionSet
from skipqa.evaluation.statistics import Comparison


def fast_path(evidence: Evidence) -> Finding:
    def drafted(rate: float, gain: Comparison) -> tuple[Verdict, str]:
        said = f"{100 * rate:.1f} % at {points(gain)} points on {gain.count:,} questions"
        return min(holds_if(rate >= 0.34), by_interval(gain, least=-0.01)), said

    def benchmark() -> Finding | None:
        if (measured := evidence.benchmark("fast_path_val")) is None:
            return None
        shipped = measured["results"]["shipped"]["all"]
        gain = Comparison(**shipped["gain"])
        found = drafted(shipped["rate"], gain)
        return from_results(*found, measured, gain.count, "okvqa/val and vqav2/val")

    def rule(found: QuestionSet) -> Finding | None:
        if (runs := both(found, "skip", "skip-no-draft")) is None:
            return None
        gain = pair(*runs).compare()
        return from_runs(*drafted(runs[0].summary["fast_path_rate"], gain), gain.count, *runs)

    needed = needs_runs("skip", "skip-no-draft")
    return strongest([benchmark(), *map(rule, evidence.sets)], needed, KNOWLEDGE)


def verifier(evidence: Evidence) -> Finding:
    if (verifier := evidence.benchmark("verifier", uses=("verifier",))) is None:
        return missing("needs a trained verifier and `python benchmarks/verifier.py`")
    f1 = verifier["results"]["f1"]
    return from_results(holds_if(f1 >= 0.90), f"F1 {f1:.3f}", verifier)


def adaptive_budget(evidence: Evidence) -> Finding:
    """Only what ships counts: a trained controller, or without one the drafter's abstaining, which
    may set K' to 0. That it tells data sets apart is part of it, as questions come mixed; within
    none may it lose."""

    def rule(found: QuestionSet) -> Finding | None:
        runs = both(found, "skip", "skip-fixed-budget")
        if runs is None or "budget" not in (runs[0].about.get("components") or {}):
            return None  # without training, the budget is fixed in both
        gain, ratio = pair(*runs).compare(), pair(*runs, "flops").ratio
        said = (
            f"{points(gain)} points on {gain.count:,} questions with "
            f"{1 / ratio:.2f} times the FLOPs"
        )
        better = Verdict.UNDECIDED if gain.low <= 0 <= gain.high else by_interval(gain)
        return from_runs(min(better, holds_if(1 / ratio <= 1.02)), said, gain.count, *runs)

    if evidence.shipped is not None and "budget" not in evidence.shipped:
        return _abstaining(evidence)
    needed = needs_runs("skip", "skip-fixed-budget", more=" --components C")
    return on_strongest_set(evidence, rule, f"{needed} with a trained `budget`")


def _abstaining(evidence: Evidence) -> Finding:
    if (measured := evidence.benchmark("adaptive_budget")) is None:
        return missing("needs `python benchmarks/adaptive_budget.py`")
    found = {name: one for name, one in measured["results"].items() if isinstance(one, dict)}
    gains = {name: one["gain"] for name, one in found.items()}
    pooled, count = gains.pop("all"), found["all"]["questions"]
    within = ", ".join(f"{name} {100 * gain['mean']:+.1f}" for name, gain in gains.items())
    said = (
        f"{100 * pooled['mean']:+.1f} ({bounds(pooled, 100, '+.1f')}) points over the best fixed "
        f"budget at equal FLOPs on {count:,} held-out questions, by the drafter's abstaining; "
        f"within {within}"
    )
    better = Verdict.HOLDS if pooled["low"] > 0 else Verdict.UNDECIDED
    if pooled["high"] < 0 or any(gain["high"] < 0 for gain in gains.values()):
        better = Verdict.FAILS
    return from_results(better, said, measured, count)
