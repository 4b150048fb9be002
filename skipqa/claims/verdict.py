"""What a measurement says about a claim: the four verdicts, and how numbers become one.

A claim about questions is judged by its interval, never by its mean alone: it holds where the
whole interval does, fails where none of it does, and is undecided between. A claim of several
parts is as good as its weakest part.
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
    """Weakest first."""

    FAILS = 0
    UNDECIDED = 1
    HOLDS = 2
    UNMEASURED = 3

    def __str__(self) -> str:
        return ("does not hold", "undecided", "holds", "not measured")[self]


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    said: str  # what was measured, or why nothing was


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything a rule may look at."""

    sets: Sequence[QuestionSet]
    results: Path  # a folder of results files of benchmarks/

    def benchmark(self, subject: str) -> Results | None:
        """The newest results of a benchmark, None where there are none."""
        try:
            return newest(self.results, subject)
        except NoResults:
            return None


def missing(why: str) -> Finding:
    return Finding(Verdict.UNMEASURED, why)


def holds_if(condition: bool) -> Verdict:
    return Verdict.HOLDS if condition else Verdict.FAILS


def by_interval(comparison: Comparison, least: float = 0.0) -> Verdict:
    """Of "the first is better by `least` or more", at 0 "at least as good"."""
    if comparison.low >= least:
        return Verdict.HOLDS
    return Verdict.FAILS if comparison.high < least else Verdict.UNDECIDED


def on_every_set(
    evidence: Evidence, rule: Callable[[QuestionSet], Finding | None], otherwise: str
) -> Finding:
    """The rule's finding on each set that has what it needs; together the weakest verdict."""
    found = [(one, finding) for one in evidence.sets if (finding := rule(one)) is not None]
    if not found:
        return missing(otherwise)
    several = len(evidence.sets) > 1
    said = "; ".join(f"{one.title}: {f.said}" if several else f.said for one, f in found)
    return Finding(min(finding.verdict for _, finding in found), said)
