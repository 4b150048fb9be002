"""Which runs a claim compares, and what to run where there are none.

Enters: runs over one file of questions. Leaves: a pair of them, or a finding about the pair.
"""

from __future__ import annotations

from collections.abc import Callable

from skipqa.claims.verdict import Finding, by_interval, from_runs
from skipqa.evaluation.records import Record
from skipqa.evaluation.reports.comparison import pair
from skipqa.evaluation.reports.markdown import points
from skipqa.evaluation.reports.runs import QuestionSet, Run
from skipqa.evaluation.summary import names_in
from skipqa.evaluation.systems import SYSTEMS

DENSE = ("dense", "fid", "late", "memory")
# What a claim is about, by what is in the title of a set of questions; the first that was asked
# counts. The paper's own set comes first; in a crowd it matters which tokens are kept.
KNOWLEDGE = ("okvqa", "not crowded")
CROWDS = (", crowded",)


def needs_runs(*systems: str, more: str = "") -> str:
    """What to run for a claim that has not been measured."""
    built = {system: "" if system in SYSTEMS else " (not built yet)" for system in systems}
    named = ", ".join(f"`{system}`{note}" for system, note in built.items())
    return f"needs runs of {named} over the same questions (`skipqa eval vqa --system …{more}`)"


def both(found: QuestionSet, one: str, other: str) -> tuple[Run, Run] | None:
    first, second = found.of_system(one), found.of_system(other)
    return (first[0], second[0]) if first and second and len(pair(first[0], second[0])) else None


def strongest_dense(found: QuestionSet) -> tuple[Run, Run] | None:
    """SKIP and the dense baseline that is best on the questions that SKIP answered."""
    skip = found.of_system("skip")
    rivals = [run for run in found.of_system(*DENSE) if skip and len(pair(run, skip[0]))]
    if not rivals:
        return None
    return skip[0], max(rivals, key=lambda run: float(pair(run, skip[0]).first.mean()))


def in_subset(name: str) -> Callable[[Record], bool]:
    return lambda record: name in names_in(record, "subset")


def at_least_as_good(
    found: QuestionSet, runs: tuple[Run, Run], where: Callable[[Record], bool] = lambda _: True
) -> Finding | None:
    scores = pair(*runs, "score", where)
    if not len(scores):
        return None
    comparison = scores.compare()
    said = f"{points(comparison)} points against {found.name(runs[1])} on {len(scores):,} questions"
    return from_runs(by_interval(comparison), said, len(scores), *runs)
