"""Systems over a file of questions: a record a question, and what they come to.

Enters: a JSON Lines file of `{question_id, image, question, answers {text: score}}` or
`{…, answer}`, with `category`, `subset` (one or a list), `popularity` and `gold` (ids of passages
that hold the answer, `hops` if several steps need one each) where they are known; a zip or folder
of photos; and anything with `answer(image, question)`. Leaves, in one folder a system: `run.json`
(what is being run), `predictions.jsonl` (written question by question, so a killed run goes on
where it stopped) and `summary.json`. It knows nothing of how a system answers.
"""

from __future__ import annotations

import dataclasses
import json
import random
import zipfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from skipqa.costs import memory
from skipqa.costs.environment import describe
from skipqa.errors import UserError
from skipqa.evaluation.scoring.okvqa import normalise
from skipqa.evaluation.statistics import mean_interval
from skipqa.files import Fields, check_object, read_json, read_text, write_json
from skipqa.parallel import spread
from skipqa.pipeline import Answer
from skipqa.types import Retrieved

Record = dict[str, Any]
Progress = Callable[[int, int], None]  # (done, of how many)

# Of a record, if nothing else was answered meanwhile: beside others they would be those of all
MEASURED_ALONE = ("latency_ms", "stage_ms", "peak_memory_bytes")
COUNTS = ("flops", "tokens", "passages", "edges")  # of a record; the summary has their means
FIELDS: Fields = {"question_id": (int, str), "image": str, "question": str}
UNIT_INTERVAL = (0.0, 1.0)  # the bounds of a score
RECALL_AT = 4


class System(Protocol):
    def answer(self, image: Path | IO[bytes], question: str) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Entrant:
    """A system, the folder of its results, and all that an answer of it depends on."""

    system: System
    folder: Path
    run: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes that answer in place of this one."""

    jobs: int
    build: Callable[[], Sequence[System]]  # in each of them: the entrants' systems, in their order


@dataclass(frozen=True, slots=True)
class Row:
    line: int
    question_id: int | str
    image: str
    question: str
    answers: Mapping[str, float]  # normalised text -> score in [0, 1]
    category: str | None = None
    subset: tuple[str, ...] = ()  # a question may be in several
    popularity: float | str | None = None
    gold: tuple[frozenset[str], ...] = ()  # for each step, passages of which one will do

    def score(self, prediction: str) -> float:
        return float(self.answers.get(normalise(prediction), 0))


Turn = tuple[int, Row]  # the place of an entrant, and what it is asked
Outcome = Record | str  # or why there is none


class Photos:
    """Photos by name, in a folder or a zip."""

    def __init__(self, path: Path) -> None:
        self.folder = path
        self.zip: zipfile.ZipFile | None = None
        if path.is_file():
            try:
                self.zip = zipfile.ZipFile(path)
            except zipfile.BadZipFile:
                raise UserError(f"{path} is neither a folder of photos nor a zip") from None
        elif not path.is_dir():
            raise UserError(f"no photos at {path}")
        self.names = frozenset(self.zip.namelist() if self.zip else ())

    def __contains__(self, name: str) -> bool:
        return name in self.names if self.zip else (self.folder / name).is_file()

    def open(self, name: str) -> Path | BytesIO:
        if self.zip is None:
            return self.folder / name
        try:
            return BytesIO(self.zip.read(name))
        except zipfile.BadZipFile as error:
            raise UserError(f"damaged in the zip: {error}") from None

    def __reduce__(self) -> tuple[type[Photos], tuple[Path]]:
        return Photos, (self.folder,)  # another process opens the zip for itself


def read_rows(path: Path, photos: Photos) -> tuple[list[Row], list[str]]:
    """The rows that can be asked, and one line about each that cannot."""
    rows: dict[int | str, Row] = {}
    bad: list[str] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = _read_row(line, number)
            if row.image not in photos:
                raise UserError(f"line {number}: no photo {row.image!r}")
            if (first := rows.get(row.question_id)) is not None:
                raise UserError(
                    f"line {number}: question {row.question_id} is already on line {first.line}"
                )
        except UserError as error:
            bad.append(str(error))
        else:
            rows[row.question_id] = row
    if not rows:
        raise UserError(f"{path} holds no usable question; {bad[0]}")
    return list(rows.values()), bad


def _read_row(line: str, number: int) -> Row:
    where = f"line {number}"
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise UserError(f"{where}: not JSON at column {error.colno} ({what})") from None
    except (ValueError, RecursionError) as error:  # a number or a nesting beyond Python's limits
        raise UserError(f"{where}: not usable JSON ({error})") from None
    check_object(where, value, FIELDS)
    if "answers" in value:
        answers = check_object(where, value, {"answers": dict})["answers"]
    else:
        answers = {normalise(check_object(where, value, {"answer": str})["answer"]): 1.0}
    if not answers:
        raise UserError(f"{where}: no answers")
    for text, score in answers.items():
        if not isinstance(score, (int, float)) or not 0 <= score <= 1:
            raise UserError(f"{where}: the score of {text!r} must lie between 0 and 1")
    popularity = value.get("popularity")
    if not isinstance(popularity, int | float | str | None):
        raise UserError(f"{where}: 'popularity' must be a number or a name")
    subset = value.get("subset") or []
    return Row(
        number,
        value["question_id"],
        value["image"],
        value["question"],
        answers,
        _name(value.get("category")),
        tuple(map(str, subset if isinstance(subset, list) else [subset])),
        popularity,
        _gold(where, value),
    )


def _gold(where: str, value: dict[str, Any]) -> tuple[frozenset[str], ...]:
    gold = value.get("gold") or []
    steps = value.get("hops") or ([gold] if gold else [])
    for ids in (gold, *steps) if isinstance(steps, list) else (steps,):
        if not isinstance(ids, list) or not all(isinstance(passage, str) for passage in ids):
            raise UserError(f"{where}: 'gold' must be a list of passage ids, 'hops' one a step")
    return tuple(map(frozenset, steps))


def _name(value: Any) -> str | None:
    return None if value is None else str(value)


def draw(rows: Sequence[Row], limit: int | None, seed: int) -> list[Row]:
    """`limit` rows in the file's order; a smaller draw with the same seed is part of it."""
    if limit is None or limit >= len(rows):
        return list(rows)
    if limit < 1:
        raise UserError(f"a limit of {limit} leaves no question")
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    return [rows[i] for i in sorted(order[:limit])]


def evaluate(
    entrants: Sequence[Entrant],
    rows: Sequence[Row],
    photos: Photos,
    bad: Sequence[str] = (),
    progress: Progress = lambda done, total: None,
    workers: Workers | None = None,
) -> list[dict[str, Any]]:
    """Ask what has no answer yet, then write and return a summary for each system.

    A question is put to every system before the next one, and they take turns in going first: a
    machine that is slow for a while is slow for all. They share the process, though: what one
    leaves with the allocator is in the next one's peak memory, so that is best measured alone. A
    folder with another run's answers is refused.
    """
    sheets = [_Sheet(entrant, list(bad)) for entrant in entrants]
    turns = [
        (place, row)
        for number, row in enumerate(rows)
        for place in (*range(number % len(sheets), len(sheets)), *range(number % len(sheets)))
        if row.question_id not in sheets[place].answered
    ]
    before = len(rows) * len(sheets) - len(turns)
    progress(before // len(sheets), len(rows))
    with closing(_asked(entrants, turns, photos, workers)) as asked:
        for done, ((place, row), outcome) in enumerate(asked, before + 1):
            sheets[place].take(row, outcome)
            progress(done // len(sheets), len(rows))
    jobs = 1 if workers is None else workers.jobs
    return [sheet.close(rows, jobs) for sheet in sheets]


def _asked(
    entrants: Sequence[Entrant], turns: Sequence[Turn], photos: Photos, workers: Workers | None
) -> Generator[tuple[Turn, Outcome]]:
    if workers is not None:
        yield from spread(partial(_prepare, workers.build, photos), turns, workers.jobs)
        return
    ask = partial(_ask, [entrant.system for entrant in entrants], photos)
    for turn in turns:
        yield turn, ask(turn)


def _prepare(build: Callable[[], Sequence[System]], photos: Photos) -> Callable[[Turn], Outcome]:
    """In a process of several."""
    ask = partial(_ask, build(), photos)

    def ask_beside_others(turn: Turn) -> Outcome:
        found = ask(turn)
        if isinstance(found, str):
            return found
        return {name: value for name, value in found.items() if name not in MEASURED_ALONE}

    return ask_beside_others


def _ask(systems: Sequence[System], photos: Photos, turn: Turn) -> Outcome:
    place, row = turn
    memory.forget_peak()
    try:
        answer = systems[place].answer(photos.open(row.image), row.question)
    except UserError as error:  # a damaged photo, a question over the limit
        return f"line {row.line}: {row.image}: {error}"
    return make_record(row, answer)


class _Sheet:
    """The answers of one system, in its folder."""

    def __init__(self, entrant: Entrant, bad: list[str]) -> None:
        claim(entrant.folder, entrant.run)
        self.entrant, self.bad = entrant, bad
        self.path = entrant.folder / "predictions.jsonl"
        self.answered = read_back(self.path)

    def take(self, row: Row, outcome: Outcome) -> None:
        if isinstance(outcome, str):
            self.bad.append(outcome)
            return
        self.answered[row.question_id] = outcome
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome, ensure_ascii=False) + "\n")

    def close(self, rows: Sequence[Row], jobs: int) -> dict[str, Any]:
        found = [self.answered[row.question_id] for row in rows if row.question_id in self.answered]
        if not found:
            raise UserError(f"no question could be answered; {self.bad[0]}")
        about = {**describe(), "jobs": jobs, **self.entrant.run}
        summary = {**about, **summarise(found), "bad_rows": self.bad}
        write_json(self.entrant.folder / "summary.json", summary, indent=1)
        return summary


def claim(folder: Path, run: Mapping[str, Any]) -> None:
    """Write down in `folder` what is run there, or check that it is the same."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.json"
    run = json.loads(json.dumps(run))
    if path.exists():
        found = read_json(path)
        differing = [key for key in {**found, **run} if found.get(key) != run.get(key)]
        if differing:
            raise UserError(
                f"{folder} holds answers of a run with other {', '.join(differing)}: "
                f"choose another folder"
            )
    elif (folder / "predictions.jsonl").exists():
        raise UserError(f"{folder} holds answers of an unknown run: choose another folder")
    else:
        write_json(path, run, indent=1)


def read_back(path: Path) -> dict[int | str, Record]:
    """The records written so far; what a kill left of a last line is cut off."""
    if not path.exists():
        return {}
    written = path.read_bytes()
    whole = written[: written.rfind(b"\n") + 1]
    if len(whole) < len(written):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    records = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            record = json.loads(line)
            records[record["question_id"]] = record
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{path} line {number} is no record: delete that line") from None
    return records


def make_record(row: Row, answer: Answer) -> Record:
    trace = answer.trace
    found = trace["retrieve"].result if "retrieve" in trace else Retrieved((), 0, 0)
    retrieved = [candidate.passage.id for candidate in found.passages]
    evidence = [passage.id for passage in answer.evidence]
    known = {"category": row.category, "subset": row.subset or None, "popularity": row.popularity}
    return {
        "question_id": row.question_id,
        **{name: value for name, value in known.items() if value is not None},
        "answer": answer.text,
        "score": row.score(answer.text),
        "route": answer.route,
        "tokens": trace["prune"].kept if "prune" in trace else 0,  # V'
        "passages": trace["budget"].result.passages if "budget" in trace else 0,  # K'
        "edges": trace["fuse"].kept if "fuse" in trace else 0,
        "hits": found.num_hits,  # over all regions
        "unique": found.num_unique,  # of these, different passages
        "retrieved": retrieved,  # before verification, best first
        "evidence": evidence,
        **(recall(row.gold, retrieved, evidence) if row.gold and answer.route == "full" else {}),
        "flops": trace.flops,
        "latency_ms": round(trace.latency_ms, 3),
        "stage_ms": {stage.name: round(stage.ms, 3) for stage in trace.stages},
        "peak_memory_bytes": memory.peak_bytes(),
    }


def recall(
    gold: Sequence[frozenset[str]], retrieved: Sequence[str], evidence: Sequence[str]
) -> dict[str, Any]:
    """The share of steps with a passage among the first retrieved, and among those kept.

    Most questions have one step: a hit or none. A question that was drafted looked nothing up and
    says nothing of retrieval.
    """

    def fraction(passages: Sequence[str]) -> float:
        return float(np.mean([not step.isdisjoint(passages) for step in gold]))

    return {
        "gold": sorted(frozenset().union(*gold)),
        f"recall@{RECALL_AT}": fraction(retrieved[:RECALL_AT]),
        "recall_kept": fraction(evidence),
    }


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Means over all questions, drafted ones too; accuracies lie in [0, 1]."""
    recalls = (f"recall@{RECALL_AT}", "recall_kept")
    return {
        "num_questions": len(records),
        "accuracy": interval_of(records, "score"),
        **{name: interval_of(records, name) for name in recalls},
        "fast_path_rate": float(np.mean([record["route"] == "draft" for record in records])),
        **{f"{name}_mean": float(np.mean([r[name] for r in records])) for name in COUNTS},
        **_measured_alone(records),
        "accuracy_by_category": intervals_by(records, "score", "category"),
        "accuracy_by_subset": intervals_by(records, "score", "subset"),
        "recall_by_subset": intervals_by(records, recalls[0], "subset"),
    }


def _measured_alone(records: Sequence[Record]) -> dict[str, Any]:
    """None of it where a question was answered beside others."""
    if not all(name in record for record in records for name in MEASURED_ALONE):
        return {"latency_ms": None, "stage_ms_mean": None, "peak_memory_bytes": None}
    p50, p95 = np.quantile([record["latency_ms"] for record in records], [0.5, 0.95])
    stages = sorted({name for record in records for name in record["stage_ms"]})
    peaks = [peak for record in records if (peak := record["peak_memory_bytes"])]
    return {
        "latency_ms": {"p50": float(p50), "p95": float(p95)},
        "stage_ms_mean": {
            name: float(np.mean([record["stage_ms"].get(name, 0.0) for record in records]))
            for name in stages
        },
        "peak_memory_bytes": max(peaks, default=None),
    }


def interval_of(records: Sequence[Record], field: str) -> dict[str, Any] | None:
    """Of the records that have the field; None where none has."""
    values = [record[field] for record in records if field in record]
    return dataclasses.asdict(mean_interval(values, bounds=UNIT_INTERVAL)) if values else None


def intervals_by(records: Sequence[Record], field: str, group: str) -> dict[str, Any]:
    """One for each category or subset, of the records in it that have the field."""
    names = sorted({name for record in records for name in names_in(record, group)})
    parts = {name: [r for r in records if name in names_in(r, group)] for name in names}
    found = {name: interval_of(part, field) for name, part in parts.items()}
    return {name: interval for name, interval in found.items() if interval is not None}


def names_in(record: Record, group: str) -> list[str]:
    """The record's category, or the subsets it is in."""
    names = record.get(group) or []
    return [names] if isinstance(names, str) else names
