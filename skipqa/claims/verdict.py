"""What a measurement says about a claim: the four verdicts, and how numbers become one.

Enters: comparisons with intervals, runs and results files. Leaves: findings. A claim about
questions is judged by its interval, never by its mean alone: it holds if the whole interval does,
fails if none of it does, and is undecided otherwise. A claim of several parts gets the weakest of
their verdicts. Of several measurements the strongest counts: the one on the questions that the
claim is about, and of those the one with the most. It knows no claim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from skipqa.claims import shipping
from skipqa.evaluation.reports.runs import QuestionSet, Run
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
    count: int = 0  # questions that it rests on, where it rests on questions
    source: str = ""  # where the numbers are, of which commit
    command: str = ""  # that measured it
    on: str = ""  # what was asked


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a rule may use."""

    sets: Sequence[QuestionSet]
    results: Path  # the benchmarks' results files
    # Checksums of the components that ship: results of others do not count. None: all count
    shipped: Mapping[str, str] | None = None

    def benchmark(self, subject: str, uses: Collection[str] | None = None) -> Results | None:
        """The newest results of a benchmark; None if it was not run, or with components that no
        longer ship. `uses` names those that its numbers depend on; None: all of them."""
        try:
            found = newest(self.results, subject)
        except NoResults:
            return None
        if self.shipped is None:
            return found
        named = found.get("components") or {}
        return None if shipping.outdated(named, self.shipped, uses) else found


def missing(why: str) -> Finding:
    return Finding(Verdict.UNMEASURED, why)


def from_runs(verdict: Verdict, said: str, count: int, *runs: Run) -> Finding:
    """A finding that rests on runs over the same questions."""
    names = ", ".join(f"`{run.folder.parent.name}/{run.folder.name}`" for run in runs)
    commits = ", ".join(dict.fromkeys(str(run.header.get("commit")) for run in runs))
    source = f"runs {names}, commit {commits}, {runs[0].header.get('date')}"
    command = str(runs[0].header.get("command", ""))
    return Finding(verdict, said, count, source, command, runs[0].title)


def from_results(
    verdict: Verdict, said: str, results: Results, count: int = 0, on: str = ""
) -> Finding:
    """A finding that rests on a results file."""
    command = str(results.get("command", ""))
    source = f"results of `{command}`, commit {results.get('commit')}, {results.get('date')}"
    return Finding(verdict, said, count, source, command, on)


def holds_if(condition: bool) -> Verdict:
    return Verdict.HOLDS if condition else Verdict.FAILS


def by_interval(comparison: Comparison, least: float = 0.0) -> Verdict:
    """On the claim that the first is better by at least `least`; 0 means at least as good."""
    if comparison.low >= least:
        return Verdict.HOLDS
    return Verdict.FAILS if comparison.high < least else Verdict.UNDECIDED


def strongest(
    found: Sequence[Finding | None], otherwise: str, about: Sequence[str] = ()
) -> Finding:
    """The finding on what the claim is about, the first of `about` that was asked; of several the
    one that rests on the most questions."""

    def strength(finding: Finding) -> tuple[int, int]:
        places = [place for place, name in enumerate(about) if name in finding.on]
        return min(places, default=len(about)), -finding.count

    measured = [finding for finding in found if finding is not None]
    return min(measured, key=strength) if measured else missing(otherwise)


def on_strongest_set(
    evidence: Evidence,
    rule: Callable[[QuestionSet], Finding | None],
    otherwise: str,
    about: Sequence[str] = (),
) -> Finding:
    return strongest([rule(one) for one in evidence.sets], otherwise, about)
