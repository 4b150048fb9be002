"""Finished runs, read back from their folders, and which of them may be compared.

Enters: folders that `evaluation/harness.py` wrote. Leaves: runs grouped by the questions that
they answered, each group with the run that the others are held against. Two runs are only ever
compared on the questions that both answered. It formats nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skipqa.config import EncodeConfig
from skipqa.errors import UserError
from skipqa.evaluation.records import Record
from skipqa.evaluation.statistics import Comparison, paired_bootstrap
from skipqa.evaluation.summary import summarise
from skipqa.files import Fields, check_object, read_json, read_jsonl

RUN_FIELDS: Fields = {"system": str, "seed": int, "questions": dict}
HEADER_FIELDS: Fields = {"machine": dict, "versions": dict, "num_questions": int}
RECORD_FIELDS: Fields = {
    "question_id": (int, str),
    "answer": str,
    "score": (int, float),
    "route": str,
    **dict.fromkeys(("tokens", "passages", "edges", "flops"), (int, float)),
}
TIMES: Fields = {"latency_ms": (int, float), "stage_ms": dict}  # absent where others were answered
REFERENCE = "dense"  # what the paper holds its system against
OWN_PRUNER = "QVS"  # SKIP's, in sweeps
# What else may tell two runs of one system apart, in the order in which a name says it
TRAITS = ("index", "components", "preset", "seed")
# Training fits these to the weights it has just trained (`settings.toml`), so that under another
# seed they are others though nobody asked for another system
BY_TRAINING = (
    "draft.threshold",
    "draft.counting_threshold",
    "decode.drafter_weight",
    "verify.threshold",
)


@dataclass(frozen=True)
class Run:
    folder: Path
    about: Mapping[str, Any]  # run.json: all that an answer depends on
    header: Mapping[str, Any]  # summary.json: where and when
    records: Mapping[int | str, Record]  # by question

    @property
    def system(self) -> str:
        return str(self.about["system"])

    @property
    def variant(self) -> str:
        """As `skipqa eval` names it: the system, a pruner, a retention."""
        pruner, retention = self.about.get("pruner"), self.about.get("retention")
        name = self.system if pruner is None else f"{self.system}+{pruner}"
        return name if retention is None else f"{name}@{retention:.3g}"

    @property
    def seed(self) -> int:
        return int(self.about["seed"])

    @property
    def task(self) -> str:
        """The official task, such as aokvqa-multiple-choice; none of a file in JSON Lines."""
        return str(self.about.get("task", ""))

    @property
    def title(self) -> str:
        """Of what was asked."""
        file = str(self.about["questions"].get("file", "?"))
        return f"{file}, {self.task}" if self.task else file

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Made again from the records, so that tables and comparisons speak of the same ones."""
        return summarise(list(self.records.values()))

    @cached_property
    def available(self) -> int | None:
        """V, where the config tells: the cells of the finest view."""
        encode = self.about.get("config", {}).get("encode", {})
        if not (scales := encode.get("scales")):
            return None
        return (scales[-1] // encode.get("cell", EncodeConfig().cell)) ** 2

    @property
    def retention(self) -> float | None:
        """V'/V as it was asked for; otherwise as it came out where the full path was taken."""
        if (asked := self.about.get("retention")) is not None:
            return float(asked)
        kept = [record["tokens"] for record in self.records.values() if record["route"] != "draft"]
        return float(np.mean(kept)) / self.available if kept and self.available else None

    def trait(self, name: str) -> Any:
        if name == "preset":
            return self.about.get("config", {}).get("preset")
        value = self.about.get(name)
        return value.get("name") if name == "index" and isinstance(value, dict) else value

    def column(
        self, field: str, where: Callable[[Record], bool] = lambda _: True
    ) -> dict[int | str, float]:
        """The field by question, of the records that have it."""
        found = ((q, r) for q, r in self.records.items() if r.get(field) is not None and where(r))
        return {question: float(record[field]) for question, record in found}


@dataclass(frozen=True)
class QuestionSet:
    """Runs over one file of questions; `names` are different and as short as that allows."""

    title: str
    runs: tuple[Run, ...]
    reference: Run
    names: Mapping[Path, str]  # by folder

    def name(self, run: Run) -> str:
        return self.names[run.folder]

    def of_system(self, *systems: str) -> list[Run]:
        """Runs of these systems as they come, without a pruner or retention asked for."""
        return [run for run in self.runs if run.system in systems and not swept(run)]


def read_run(folder: Path) -> Run:
    if not folder.is_dir():
        raise UserError(f"no folder {folder}")
    if not (folder / "run.json").exists():
        raise UserError(f"{folder} holds no run: it has no run.json; `skipqa eval vqa` writes one")
    about = check_object(str(folder / "run.json"), read_json(folder / "run.json"), RUN_FIELDS)
    predictions = folder / "predictions.jsonl"
    if not (folder / "summary.json").exists():
        done = predictions.read_bytes().count(b"\n") if predictions.exists() else 0
        raise UserError(
            f"{folder} is not finished: {done} answers and no summary.json; run its "
            f"`skipqa eval` command again, it goes on where it stopped"
        )
    path = folder / "summary.json"
    header = check_object(str(path), read_json(path), HEADER_FIELDS)
    records: dict[int | str, Record] = {}
    for number, value in enumerate(read_jsonl(predictions), 1):
        where = f"{predictions} record {number}"
        record = check_object(where, value, RECORD_FIELDS)
        if not TIMES.keys().isdisjoint(record):
            record = {"peak_memory_bytes": None, **check_object(where, record, TIMES)}
        records[record["question_id"]] = record
    if len(records) < header["num_questions"]:
        raise UserError(
            f"{folder}: the summary speaks of {header['num_questions']} questions, "
            f"predictions.jsonl has {len(records)}"
        )
    return Run(folder, about, header, records)


def read_runs(folders: Sequence[Path], reference: str | None = None) -> list[QuestionSet]:
    """Runs by the file of questions they answered, in the order in which the files come."""
    unique = {found.resolve(): found for folder in folders for found in _expand(folder)}
    runs = [read_run(folder) for folder in unique.values()]
    if reference is not None and all(run.system != reference for run in runs):
        found = ", ".join(dict.fromkeys(run.system for run in runs))
        raise UserError(f"no run of the reference {reference!r}; there is {found}")
    by_file: dict[str, list[Run]] = {}
    for run in runs:
        questions = run.about["questions"]
        file = str(questions.get("sha256") or questions.get("file"))
        by_file.setdefault(file + run.task, []).append(run)  # one file may be scored in two ways
    titles = [found[0].title for found in by_file.values()]
    sets = []
    for title, (file, group) in zip(titles, by_file.items(), strict=True):
        shared = titles.count(title) > 1  # two files of one name
        sets.append(_question_set(group, reference, f"{title} ({file[:8]})" if shared else title))
    return sets


def _expand(folder: Path) -> list[Path]:
    """The folder, or the runs in it where it holds several."""
    if (folder / "run.json").exists():
        return [folder]
    return sorted(path.parent for path in folder.glob("*/run.json")) or [folder]


def _question_set(runs: Sequence[Run], wanted: str | None, title: str) -> QuestionSet:
    names = name_runs(runs)
    by_system = {run.system: run for run in reversed(runs)}
    reference = by_system.get(wanted or REFERENCE) or by_system.get(REFERENCE) or runs[0]
    for run in runs:
        if not run.records.keys() & reference.records.keys():
            raise UserError(
                f"{run.folder} and {reference.folder} answered no question in common: "
                f"they cannot be compared; run both with the same --limit and --seed"
            )
    return QuestionSet(title, tuple(runs), reference, names)


def name_runs(runs: Sequence[Run]) -> dict[Path, str]:
    """The variant, such as `skip+tome@0.25`, and what else tells it apart from its likes."""
    names = {}
    for run in runs:
        alike = [other for other in runs if other.variant == run.variant]
        words = [run.variant]
        for trait in TRAITS:
            value = run.trait(trait)
            if value not in (None, {}) and any(other.trait(trait) != value for other in alike):
                words.append("trained" if trait == "components" else f"{trait} {value}")
        names[run.folder] = ", ".join(words)
    uses = Counter(names.values())
    return {
        folder: name if uses[name] == 1 else f"{name} ({folder.name})"
        for folder, name in names.items()
    }


@dataclass(frozen=True, slots=True)
class Paired:
    """Two runs on the questions that both answered, in one order."""

    first: NDArray[np.float64]
    second: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.first)

    def compare(self, fraction: float = 1.0) -> Comparison:
        """How far the first mean lies above `share` of the second; of shares."""
        return paired_bootstrap(self.first, fraction * self.second, bounds=(-fraction, 1))

    @property
    def ratio(self) -> float:
        """How many times more the second spends."""
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
    """Whether each question of all of them was answered by itself, so that its latency counts."""
    return all(run.summary["latency_ms"] is not None for run in runs)


def swept(run: Run) -> bool:
    """Whether a pruner or a retention was asked for."""
    return run.about.get("pruner") is not None or run.about.get("retention") is not None


def sweeps(found: QuestionSet) -> dict[str, dict[float, Run]]:
    """Runs by pruner and retention, SKIP's own first.

    SKIP as it comes, and unpruned, are points of its own line where nothing else was run at about
    that retention. Another system under a pruner is a line of its own. All speak of the questions
    that every one of them answered, where there are such.
    """
    lines: dict[str, dict[float, Run]] = {OWN_PRUNER: {}}
    for run in [*filter(swept, found.runs), *found.of_system("skip", "skip-no-pruning")]:
        pruner, retention = run.about.get("pruner") or OWN_PRUNER, run.retention
        if retention is None:
            continue
        own = run.system in ("skip", "skip-no-pruning")
        line = lines.setdefault(pruner if own else f"{run.system}, {pruner}", {})
        if swept(run) or not any(abs(other / retention - 1) < 0.1 for other in line):
            line[retention] = run
    asked = [run.records.keys() for runs in lines.values() for run in runs.values()]
    shared = set.intersection(*map(set, asked)) if asked else set()
    return {
        name: {at: _on(run, shared) for at, run in sorted(runs.items())}
        for name, runs in lines.items()
        if runs
    }


def _on(run: Run, questions: set[int | str]) -> Run:
    """The run as if only these had been asked; as it is where there are none."""
    records = {q: record for q, record in run.records.items() if q in questions}
    return replace(run, records=records) if records else run


def seed_groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ in the seed alone, or in what was trained under another."""

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
    """The config's settings by their dotted names, without those that training chose."""
    settings: dict[str, Any] = {}
    for stage, values in config.items():
        if isinstance(values, dict):
            settings |= {f"{stage}.{name}": value for name, value in values.items()}
        else:
            settings[stage] = values
    return {name: value for name, value in settings.items() if name not in BY_TRAINING}


def seed_accuracies(group: Sequence[Run]) -> tuple[list[float], int]:
    """The accuracy under each seed, on the questions that all of them answered, and how many."""
    shared = set.intersection(*(set(run.records) for run in group))
    if not shared:
        return [], 0
    accuracies = [float(np.mean([run.records[q]["score"] for q in shared])) for run in group]
    return accuracies, len(shared)
