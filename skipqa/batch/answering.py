"""What a worker does: it loads one pipeline, then answers one fragment after the other.

Enters: fragments, as one-row batches of Ray Data. Leaves: an output file per fragment, complete or
not there at all, and a row of counts for whoever follows the progress. A question that cannot be
answered has one line in `error`, and the others go on. It knows nothing of the other workers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from skipqa.batch.fragments import PARQUET, Fragment, Tally, id_type, read_rows, tally_of
from skipqa.costs.environment import available_cores
from skipqa.errors import UserError
from skipqa.files import atomic, kind_of
from skipqa.pipeline import Pipeline, load
from skipqa.state import ImageSource

EMPTY: Mapping[str, Any] = {
    "answer": None,
    "confidence": None,
    "grounded": None,
    "path": None,
    "seconds": None,
    "gflops": None,
    "passages": [],
    "error": None,
}


@dataclass(frozen=True, slots=True)
class Job:
    """What all workers of a run have in common. Folders are absolute."""

    load: Mapping[str, Any]  # how `skipqa.pipeline.load` is called
    images: Path  # where relative paths of images start
    out: Path
    threads: int  # of torch in each worker; 0: as many as its machine has cores


class Answering:
    """The class that Ray Data makes an actor of."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads or available_cores())
        self.job, self.pipeline = job, load(**job.load)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        fragment = Fragment(**{name: column.tolist()[0] for name, column in batch.items()})
        failed = ""
        try:
            tally = answer_fragment(self.pipeline, self.job, fragment)
        except (UserError, OSError) as error:  # of the files themselves: no row is to blame
            tally, failed = Tally(), _one_line(error)
        counts = {**asdict(tally), "output": fragment.output, "failed": failed}
        return {name: [value] for name, value in counts.items()}


def answer_fragment(pipeline: Pipeline, job: Job, fragment: Fragment) -> Tally:
    rows = [answer_row(pipeline, job.images, *row) for row in read_rows(fragment)]
    if len(rows) != fragment.rows:
        raise UserError(f"{fragment.file} has changed since the run began: start it again")
    write(job.out / fragment.output, rows, fragment)
    return tally_of(rows)


def answer_row(pipeline: Pipeline, images: Path, number: int, row: Any) -> dict[str, Any]:
    """One row of the output; `number` stands for an id that is missing."""
    found = row.get("id") if isinstance(row, dict) else None
    result = {"id": number if found is None else found, **EMPTY}
    try:
        image, question = asked(row, images)
        started = time.perf_counter()
        answer = pipeline.answer(image, question)
        seconds = time.perf_counter() - started
    except Exception as error:  # also a bug that one row shows must not end all the others
        return {**result, "error": _one_line(error)}
    passages = [{"id": e.id, "title": e.title, "score": e.score} for e in answer.evidence]
    return {
        **result,
        "answer": answer.text,
        "confidence": answer.confidence,
        "grounded": answer.grounded,
        "path": answer.route,
        "seconds": round(seconds, 4),
        "gflops": round(answer.trace.flops / 1e9, 4),
        "passages": passages,
    }


def asked(row: Any, images: Path) -> tuple[ImageSource, str]:
    """The image and the question of a row. An image is a path, bytes, or a dict that has either, as
    Hugging Face datasets store it."""
    if isinstance(row, UserError):
        raise row
    if not isinstance(row, dict):
        raise UserError(f"a row must be an object, found {kind_of(row)}")
    image, question = row.get("image"), row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise UserError("the question is missing or no text")
    if isinstance(image, dict):
        given = image.get("bytes")
        image = image.get("path") if given is None else given
    if isinstance(image, bytes):
        return BytesIO(image), question
    if isinstance(image, str) and image:
        return images / image, question  # an absolute path stays itself
    raise UserError("the image is missing, or neither a path nor bytes")


def write(path: Path, rows: list[dict[str, Any]], fragment: Fragment) -> None:
    with atomic(path) as partial:
        if path.suffix == PARQUET:
            _write_parquet(partial, rows, id_type(fragment))
        else:
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            partial.write_text("".join(lines), encoding="utf-8")


def _write_parquet(path: Path, rows: list[dict[str, Any]], kind: Any) -> None:
    """With the type that ids have in the input, so that the two can be joined."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    passage = {"id": arrow.string(), "title": arrow.string(), "score": arrow.float64()}
    schema = arrow.schema(
        {
            "id": kind,
            "answer": arrow.string(),
            "confidence": arrow.float64(),
            "grounded": arrow.bool_(),
            "path": arrow.string(),
            "seconds": arrow.float64(),
            "gflops": arrow.float64(),
            "passages": arrow.list_(arrow.struct(passage)),
            "error": arrow.string(),
        }
    )
    if not arrow.types.is_integer(kind):  # a row number among strings
        rows = [{**row, "id": str(row["id"])} for row in rows]
    parquet.write_table(arrow.Table.from_pylist(rows, schema), path)


def _one_line(error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return said if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {said}"
