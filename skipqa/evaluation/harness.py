"""One system over a file of questions: a record a question, and what they come to.

Enters: a JSON Lines file of `{question_id, image, question, answers {text: score}}` or
`{…, answer}`, a zip or folder of photos, and anything with `answer(image, question)`. Leaves, in
one folder: `run.json` (what is being run), `predictions.jsonl` (written question by question, so
a killed run goes on where it stopped) and `summary.json`. It knows nothing of how a system answers.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from skipqa.costs.environment import describe
from skipqa.data.files import Fields, check_object, read_json, read_text
from skipqa.errors import UserError
from skipqa.evaluation.scoring.okvqa import normalise
from skipqa.evaluation.statistics import by_group, mean_interval
from skipqa.pipeline import Answer

Record = dict[str, Any]
Progress = Callable[[int, int], None]  # (done, of how many)

COUNTS = ("flops", "tokens", "passages", "edges")  # of a record; the summary has their means
FIELDS: Fields = {"question_id": (int, str), "image": str, "question": str}


class System(Protocol):
    def answer(self, image: Path | IO[bytes], question: str) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Row:
    line: int
    question_id: int | str
    image: str
    question: str
    answers: Mapping[str, float]  # normalised text -> score in [0, 1]
    category: str | None = None

    def score(self, prediction: str) -> float:
        return float(self.answers.get(normalise(prediction), 0))


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
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON, {error}") from None
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
    category = value.get("category")
    return Row(
        number,
        value["question_id"],
        value["image"],
        value["question"],
        answers,
        None if category is None else str(category),
    )


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
    system: System,
    rows: Sequence[Row],
    photos: Photos,
    folder: Path,
    run: Mapping[str, Any],
    bad: Sequence[str] = (),
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Ask what `folder` has no answer to yet, then write and return the summary.

    `run` is all that an answer depends on; a folder with another run's answers is refused.
    """
    claim(folder, run)
    path = folder / "predictions.jsonl"
    answered = read_back(path)
    bad = list(bad)
    with path.open("a", encoding="utf-8") as file:
        for done, row in enumerate(rows):
            progress(done, len(rows))
            if row.question_id in answered:
                continue
            try:
                answer = system.answer(photos.open(row.image), row.question)
            except UserError as error:  # a damaged photo, a question over the limit
                bad.append(f"line {row.line}: {row.image}: {error}")
                continue
            answered[row.question_id] = record = make_record(row, answer)
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()
    progress(len(rows), len(rows))
    records = [answered[row.question_id] for row in rows if row.question_id in answered]
    if not records:
        raise UserError(f"no question could be answered; {bad[0]}")
    summary = {**describe(), **run, **summarise(records), "bad_rows": bad}
    _write(folder / "summary.json", summary)
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
        _write(path, run)


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
    return {
        "question_id": row.question_id,
        **({} if row.category is None else {"category": row.category}),
        "answer": answer.text,
        "score": row.score(answer.text),
        "route": answer.route,
        "tokens": trace["prune"].kept if "prune" in trace else 0,  # V'
        "passages": trace["budget"].result.passages if "budget" in trace else 0,  # K'
        "edges": trace["fuse"].kept if "fuse" in trace else 0,
        "evidence": [evidence.id for evidence in answer.evidence],
        "flops": trace.flops,
        "latency_ms": round(trace.latency_ms, 3),
        "stage_ms": {stage.name: round(stage.ms, 3) for stage in trace.stages},
        "peak_memory_bytes": peak_memory_bytes(),
    }


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Means over all questions, drafted ones too; accuracies lie in [0, 1]."""

    def column(name: str) -> list[float]:
        return [record[name] for record in records]

    p50, p95 = np.quantile(column("latency_ms"), [0.5, 0.95])
    stages = {name for record in records for name in record["stage_ms"]}
    return {
        "num_questions": len(records),
        "accuracy": dataclasses.asdict(mean_interval(column("score"))),
        "fast_path_rate": float(np.mean([record["route"] == "draft" for record in records])),
        **{f"{name}_mean": float(np.mean(column(name))) for name in COUNTS},
        "latency_ms": {"p50": float(p50), "p95": float(p95)},
        "stage_ms_mean": {
            name: float(np.mean([record["stage_ms"].get(name, 0.0) for record in records]))
            for name in sorted(stages)
        },
        "peak_memory_bytes": max((n for n in column("peak_memory_bytes") if n), default=None),
        "accuracy_by_category": by_category(records),
    }


def by_category(records: Sequence[Record]) -> dict[str, Any]:
    """An accuracy for each category, of the questions that have one."""
    records = sorted((r for r in records if "category" in r), key=lambda r: r["category"])
    if not records:
        return {}
    intervals = by_group([r["score"] for r in records], [r["category"] for r in records])
    return {str(name): dataclasses.asdict(interval) for name, interval in intervals.items()}


def peak_memory_bytes() -> int | None:
    """The most memory that this process has had; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _write(path: Path, value: Any) -> None:
    """Whole or not at all: a kill must not leave half a file."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)
