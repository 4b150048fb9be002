"""Claims about routing: the fast path, the verifier, the adaptive budget.

Enters: evidence. Leaves: a finding per claim.
"""

from __future__ import annotations

import math

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
from skipqa.evaluation.reports.comparison import pair
from skipqa.evaluation.reports.markdown import points
from skipqa.evaluation.reports.runs import QuestionSet
from skipqa.evaluation.statistics import Comparison


def fast_path(evidence: Evidence) -> Finding:
    """By the benchmark if it was run, as for small entities."""

    def drafted(rate: float, gain: Comparison, of: str = "") -> Finding:
        said = f"{100 * rate:.1f} % at {points(gain)} points on {gain.count:,} questions{of}"
        return Finding(min(holds_if(rate >= 0.34), by_interval(gain, least=-0.01)), said)

    if (measured := evidence.benchmark("fast_path_val")) is not None:
        shipped = measured["results"]["shipped"]["all"]
        return drafted(shipped["rate"], Comparison(**shipped["gain"]), " of OK-VQA and VQAv2")

    def rule(found: QuestionSet) -> Finding | None:
        if (runs := both(found, "skip", "skip-no-draft")) is None:
            return None
        return drafted(runs[0].summary["fast_path_rate"], pair(*runs).compare())

    return on_every_set(evidence, rule, needs_runs("skip", "skip-no-draft"))


def verifier(evidence: Evidence) -> Finding:
    if (verifier := evidence.benchmark("verifier")) is None:
        return missing("needs a trained verifier and `python benchmarks/verifier.py`")
    f1 = verifier["results"]["f1"]
    return Finding(holds_if(f1 >= 0.90), f"F1 {f1:.3f}")


def adaptive_budget(evidence: Evidence) -> Finding:
    def better(gain: Comparison) -> Verdict:
        return Verdict.UNDECIDED if gain.low <= 0 <= gain.high else by_interval(gain)

    def rule(found: QuestionSet) -> Finding | None:
        runs = both(found, "skip", "skip-fixed-budget")
        if runs is None or "budget" not in (runs[0].about.get("components") or {}):
            return None  # without training, the budget is fixed in both
        gain, ratio = pair(*runs).compare(), pair(*runs, "flops").ratio
        said = (
            f"{points(gain)} points on {gain.count:,} questions with "
            f"{1 / ratio:.2f} times the FLOPs"
        )
        return Finding(min(better(gain), holds_if(1 / ratio <= 1.02)), said)

    needed = needs_runs("skip", "skip-fixed-budget", more=" --components C")
    needed += " with a trained `budget`"
    finding = on_every_set(evidence, rule, needed)
    stages = evidence.benchmark("later_stages")
    if finding.verdict != Verdict.UNMEASURED or stages is None:
        return finding
    budget = stages["results"]["stage5"]["budget"]
    val, spent = budget["val"], budget["val"]["adaptive"]
    low, high = val["gain"]["low"], val["gain"]["high"]
    no_p_value = math.nan  # stage V keeps none
    gain = Comparison(val["gain"]["mean"], low, high, no_p_value, val["questions"])
    said = (
        f"{100 * spent['score']:.1f} against {100 * val['fixed_at_equal_flops']:.1f} for the best "
        f"fixed one at {spent['giga_flops']:.1f} GFLOPs, {points(gain)} points on {gain.count:,} "
        f"questions as measured by stage V"
    )
    return Finding(better(gain), said if budget["ships"] else f"{said}; this budget does not ship")
