"""Which runs may be compared, and on what: pairs, sweeps over retention, groups of seeds.

Enters: runs over one file of questions. Leaves: scores of two or more runs on the questions that
all of them answered, never on others. It formats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skipqa.evaluation.records import Record
from skipqa.evaluation.reports.runs import QuestionSet, Run
from skipqa.evaluation.statistics import Comparison, paired_bootstrap

OWN_PRUNER = "QVS"  # SKIP's, in sweeps
# Training fits these to the weights it has just trained (`settings.toml`), so they differ between
# seeds of one system
FITTED = (
    "draft.threshold",
    "draft.counting_threshold",
    "decode.drafter_weight",
    "decode.frequency_weight",
    "decode.own_weight",
    "verify.threshold",
)


@dataclass(frozen=True, slots=True)
class Paired:
    """Two runs on the questions that both answered, in the same order."""

    first: NDArray[np.float64]
    second: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.first)

    def compare(self, fraction: float = 1.0) -> Comparison:
        """By how much the first mean exceeds `fraction` of the second; scores lie in [0, 1]."""
        return paired_bootstrap(self.first, fraction * self.second, bounds=(-fraction, 1))

    @property
    def ratio(self) -> float:
        """The second mean over the first: how many times more the second spends."""
        return float(self.second.mean() / self.first.mean()) if self.first.mean() else float("inf")


def pair(
    first: Run, second: Run, field: str = "score", where: Callable[[Record], bool] = lambda _: True
) -> Paired:
    one, two = first.column(field, where), second.column(field, where)
    shared = sorted(one.keys() & two.keys(), key=str)
    return Paired(np.array([one[q] for q in shared]), np.array([two[q] for q in shared]))


def same_machine(first: Run, second: Run) -> bool:
    """Latencies of two machines are not compared."""
    return bool(first.header["machine"] == second.header["machine"])


def timed(*runs: Run) -> bool:
    """Whether all of them answered one question at a time, so that latencies mean something."""
    return all(run.summary["latency_ms"] is not None for run in runs)


def sweeps(found: QuestionSet) -> dict[str, dict[float, Run]]:
    """Runs by pruner and retention, SKIP's own first.

    SKIP at its own retention, and unpruned, are points of its line unless another run has about
    the same retention. Another system with a pruner is a line of its own. All are restricted to
    the questions that every one of them answered, if there are any.
    """
    lines: dict[str, dict[float, Run]] = {OWN_PRUNER: {}}
    for run in [
        *(run for run in found.runs if run.swept),
        *found.of_system("skip", "skip-no-pruning"),
    ]:
        pruner, retention = run.about.get("pruner") or OWN_PRUNER, run.retention
        if retention is None:
            continue
        own = run.system in ("skip", "skip-no-pruning")
        line = lines.setdefault(pruner if own else f"{run.system}, {pruner}", {})
        if run.swept or not any(abs(other / retention - 1) < 0.1 for other in line):
            line[retention] = run
    asked = [run.records.keys() for runs in lines.values() for run in runs.values()]
    shared = set.intersection(*map(set, asked)) if asked else set()
    return {
        name: {at: _on(run, shared) for at, run in sorted(runs.items())}
        for name, runs in lines.items()
        if runs
    }


def _on(run: Run, questions: set[int | str]) -> Run:
    """The run restricted to these questions; unchanged if it has none of them."""
    restricted = run.only(lambda record: record["question_id"] in questions)
    return restricted if restricted.records else run


def seed_groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ in the seed alone, or in what was trained with another seed."""

    def kind(run: Run) -> str:
        trained = ("seed", "components", "config")
        alike = {key: value for key, value in run.about.items() if key not in trained}
        asked = _as_asked(run.about.get("config", {}))
        return repr((alike, asked, sorted(run.about.get("components") or {})))

    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        groups.setdefault(kind(run), {}).setdefault(run.seed, run)
    return [list(group.values()) for group in groups.values() if len(group) > 1]


def _as_asked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config's settings by their dotted names, without those that training fitted."""
    settings: dict[str, Any] = {}
    for stage, values in config.items():
        if isinstance(values, dict):
            settings |= {f"{stage}.{name}": value for name, value in values.items()}
        else:
            settings[stage] = values
    return {name: value for name, value in settings.items() if name not in FITTED}


def seed_accuracies(group: Sequence[Run]) -> tuple[list[float], int]:
    """The accuracy with each seed on the questions that all runs answered, and their number."""
    shared = set.intersection(*(set(run.records) for run in group))
    if not shared:
        return [], 0
    accuracies = [float(np.mean([run.records[q]["score"] for q in shared])) for run in group]
    return accuracies, len(shared)
