"""Finished runs, read back from their folders and grouped by the questions that they answered.

Enters: folders that `evaluation/harness.py` wrote. Leaves: sets of runs over one file of questions,
each with its reference, the run that the others are compared with. It compares and formats nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from skipqa.config import EncodeConfig
from skipqa.errors import UserError
from skipqa.evaluation.records import Record
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
# Absent where several questions were answered at once
TIMES: Fields = {"latency_ms": (int, float), "stage_ms": dict}
REFERENCE = "dense"  # what the paper compares its system with
# What else can distinguish two runs of one system, in the order in which a name lists it
TRAITS = ("index", "components", "preset", "seed")


@dataclass(frozen=True)
class Run:
    folder: Path
    about: Mapping[str, Any]  # run.json: everything that an answer depends on
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
    def swept(self) -> bool:
        """Whether a pruner or a retention was asked for."""
        return self.about.get("pruner") is not None or self.about.get("retention") is not None

    @property
    def seed(self) -> int:
        return int(self.about["seed"])

    @property
    def task(self) -> str:
        """The official task, such as aokvqa-multiple-choice; none of a file in JSON Lines."""
        return str(self.about.get("task", ""))

    @property
    def subset(self) -> str:
        """What was asked of the file, such as "crowded"; empty for all."""
        return str(self.about.get("subset", ""))

    @property
    def title(self) -> str:
        """Of what was asked."""
        file = str(self.about["questions"].get("file", "?"))
        return ", ".join(filter(None, (file, self.task, self.subset)))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Computed from the records, so that tables and comparisons use the same ones."""
        return summarise(list(self.records.values()))

    @cached_property
    def available(self) -> int | None:
        """V, if the config gives it: the cells of the finest view."""
        encode = self.about.get("config", {}).get("encode", {})
        if not (scales := encode.get("scales")):
            return None
        return (scales[-1] // encode.get("cell", EncodeConfig().cell)) ** 2

    @property
    def retention(self) -> float | None:
        """V'/V as requested; otherwise as measured over the questions that took the full path."""
        if (asked := self.about.get("retention")) is not None:
            return float(asked)
        kept = [record["tokens"] for record in self.records.values() if record["route"] != "draft"]
        return float(np.mean(kept)) / self.available if kept and self.available else None

    def only(self, where: Callable[[Record], bool]) -> Run:
        """The run restricted to some of its questions."""
        return replace(self, records={q: r for q, r in self.records.items() if where(r)})

    def with_types(self, types: Mapping[str, str]) -> Run:
        """With the types of its questions, by their ids as text; others keep what they have."""
        found = {q: types[str(q)] for q in self.records if str(q) in types}
        typed = {q: {**r, "type": found[q]} if q in found else r for q, r in self.records.items()}
        return replace(self, records=typed)

    def trait(self, name: str) -> Any:
        if name == "preset":
            return self.about.get("config", {}).get("preset")
        value = self.about.get(name)
        if name == "index" and value is not None:  # runs before 0.2 have one, not in a list
            return " + ".join(
                one["name"] for one in (value if isinstance(value, list) else [value])
            )
        return value

    def column(
        self, field: str, where: Callable[[Record], bool] = lambda _: True
    ) -> dict[int | str, float]:
        """The field by question, of the records that have it."""
        found = ((q, r) for q, r in self.records.items() if r.get(field) is not None and where(r))
        return {question: float(record[field]) for question, record in found}


@dataclass(frozen=True)
class QuestionSet:
    """Runs over one file of questions; `names` are distinct and as short as possible."""

    title: str
    runs: tuple[Run, ...]
    reference: Run
    names: Mapping[Path, str]  # by folder

    def name(self, run: Run) -> str:
        return self.names[run.folder]

    def of_system(self, *systems: str) -> list[Run]:
        """Runs of these systems with their own pruner and retention."""
        return [run for run in self.runs if run.system in systems and not run.swept]


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
            f"`skipqa eval` command again, it resumes where it stopped"
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
            f"{folder}: summary.json counts {header['num_questions']} questions, "
            f"predictions.jsonl has {len(records)}"
        )
    return Run(folder, about, header, records)


def read_runs(
    folders: Sequence[Path],
    reference: str | None = None,
    types: Mapping[str, str] = MappingProxyType({}),
) -> list[QuestionSet]:
    """Runs by the file of questions they answered, in the order in which the files come.

    `types` are those of questions, by id as text, for runs that were asked without them.
    """
    unique = {found.resolve(): found for folder in folders for found in run_folders(folder)}
    runs = [read_run(folder).with_types(types) for folder in unique.values()]
    if types and not any(str(question) in types for run in runs for question in run.records):
        raise UserError("the types are of none of the questions that these runs answered")
    if reference is not None and all(run.system != reference for run in runs):
        found = ", ".join(dict.fromkeys(run.system for run in runs))
        raise UserError(f"no run of the reference {reference!r}; there is {found}")
    by_file: dict[str, list[Run]] = {}
    for run in runs:
        questions = run.about["questions"]
        file = str(questions.get("sha256") or questions.get("file"))
        # one file may be scored in two ways, or asked in parts
        by_file.setdefault(file + run.task + run.subset, []).append(run)
    titles = [found[0].title for found in by_file.values()]
    sets = []
    for title, (file, group) in zip(titles, by_file.items(), strict=True):
        shared = titles.count(title) > 1  # two files of one name
        sets.append(_question_set(group, reference, f"{title} ({file[:8]})" if shared else title))
    return sets


def run_folders(folder: Path) -> list[Path]:
    """The folder itself, or the runs in it."""
    if (folder / "run.json").exists():
        return [folder]
    return sorted(path.parent for path in folder.glob("*/run.json")) or [folder]


def _question_set(runs: Sequence[Run], required: str | None, title: str) -> QuestionSet:
    names = name_runs(runs)
    by_system = {run.system: run for run in reversed(runs)}
    reference = by_system.get(required or REFERENCE) or by_system.get(REFERENCE) or runs[0]
    for run in runs:
        if not run.records.keys() & reference.records.keys():
            raise UserError(
                f"{run.folder} and {reference.folder} answered no question in common: "
                f"they cannot be compared; run both with the same --limit and --seed"
            )
    return QuestionSet(title, tuple(runs), reference, names)


def name_runs(runs: Sequence[Run]) -> dict[Path, str]:
    """The variant, such as `skip+tome@0.25`, and what distinguishes it from runs of the same."""
    names = {}
    for run in runs:
        alike = [other for other in runs if other.variant == run.variant]
        name = run.variant
        for trait in TRAITS:
            value = run.trait(trait)
            if value not in (None, {}) and any(other.trait(trait) != value for other in alike):
                name += _trained(run, alike) if trait == "components" else f", {trait} {value}"
        names[run.folder] = name
    uses = Counter(names.values())
    return {
        folder: name if uses[name] == 1 else f"{name} ({folder.name})"
        for folder, name in names.items()
    }


def _trained(run: Run, alike: Sequence[Run]) -> str:
    """What it was trained to have besides what all of these runs have alike; where they have
    nothing alike, that it was trained."""
    all_had = [other.trait("components") or {} for other in alike]
    fewest = min(all_had, key=len)
    if not fewest or any(not fewest.items() <= had.items() for had in all_had):
        return ", trained"
    more = sorted(run.trait("components").keys() - fewest.keys())
    return f" with {' and '.join(more)}" if more else ""
