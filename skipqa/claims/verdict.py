"""What a measurement says about a claim: the four verdicts, and how numbers become one.

Enters: comparisons with intervals, and runs. Leaves: findings. A claim about questions is judged by
its interval, never by its mean alone: it holds if the whole interval does, fails if none of it
does, and is undecided otherwise. A claim of several parts gets the weakest of their verdicts.
It knows no claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from skipqa.evaluation.reports.runs import QuestionSet
from skipqa.evaluation.results import NoResults, Results, newest
from skipqa.evaluation.statistics import Comparison


class Verdict(IntEnum):
    """Weakest first: one part that was not measured leaves a claim unmeasured, unless another part
    fails."""

    FAILS = 0
    UNMEASURED = 1
    UNDECIDED = 2
    HOLDS = 3

    def __str__(self) -> str:
        return ("does not hold", "not measured", "undecided", "holds")[self]


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    said: str  # what was measured, or why nothing was


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a rule may use."""

    sets: Sequence[QuestionSet]
    results: Path  # the benchmarks' results files

    def benchmark(self, subject: str) -> Results | None:
        """The newest results of a benchmark, None if it was not run."""
        try:
            return newest(self.results, subject)
        except NoResults:
            return None


def missing(why: str) -> Finding:
    return Finding(Verdict.UNMEASURED, why)


def holds_if(condition: bool) -> Verdict:
    return Verdict.HOLDS if condition else Verdict.FAILS


def by_interval(comparison: Comparison, least: float = 0.0) -> Verdict:
    """On the claim that the first is better by at least `least`; 0 means at least as good."""
    if comparison.low >= least:
        return Verdict.HOLDS
    return Verdict.FAILS if comparison.high < least else Verdict.UNDECIDED


def on_every_set(
    evidence: Evidence, rule: Callable[[QuestionSet], Finding | None], otherwise: str
) -> Finding:
    """The findings on all sets that have the runs it needs, with the weakest of their verdicts."""
    found = [(one, finding) for one in evidence.sets if (finding := rule(one)) is not None]
    if not found:
        return missing(otherwise)
    several = len(evidence.sets) > 1
    said = "; ".join(f"{one.title}: {f.said}" if several else f.said for one, f in found)
    return Finding(min(finding.verdict for _, finding in found), said)
