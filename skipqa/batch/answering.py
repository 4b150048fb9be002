"""What a worker does: it loads one pipeline, then answers one fragment after the other.

Enters: fragments, as one-row batches of Ray Data. Leaves: an output file per fragment, complete or
not there at all, and a row of counts for whoever follows the progress. A question that cannot be
answered has one line in `error`, and the others go on. It knows nothing of the other workers.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from skipqa import __version__
from skipqa.batch.outputs import NOT_ANSWERED, RUN, Tally, tally_of, write
from skipqa.batch.sources import Fragment, Row, read_rows
from skipqa.errors import UserError
from skipqa.pipeline import Pipeline, load
from skipqa.state import ImageSource

PER_MEASURED = 50  # questions to answer for each that is measured before
MOST_MEASURED = 4
URL = re.compile(r"[a-z][a-z0-9+.-]*://|data:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Job:
    """What all workers of a run have in common. Folders are absolute."""

    load: Mapping[str, Any]  # how `skipqa.pipeline.load` is called
    images: Path  # where relative paths of images start
    out: Path
    version: str = __version__  # of whoever started the run


class Answering:
    """The class that Ray Data makes an actor of. It computes in one thread, next to others."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(1)
        self.job = job
        self.pipeline: Pipeline | Exception
        try:
            check_machine(job)
            self.pipeline = load(**job.load)
        except Exception as error:  # told with the first fragment; an actor that fails is restarted
            self.pipeline = error

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        fragment = Fragment(**{name: column.tolist()[0] for name, column in batch.items()})
        tally, failed = Tally(), ""
        try:
            if isinstance(self.pipeline, Exception):
                raise self.pipeline
            tally = answer_fragment(self.pipeline, self.job, fragment)
        except Exception as error:  # a full disk, a changed file, a bug: no row is to blame
            failed = f"{_one_line(error)} (on {socket.gethostname()})"
        counts = {**asdict(tally), "output": fragment.output, "failed": failed}
        return {name: [value] for name, value in counts.items()}


def check_machine(job: Job) -> None:
    """Refuse to work where the answers would be others or would not arrive."""
    if job.version != __version__:
        raise UserError(
            f"skipqa {__version__} is installed, but the run was started by {job.version}: install "
            f"the same on all machines"
        )
    if not (job.out / RUN).exists():
        raise UserError(
            f"{job.out} is not to be seen: all machines need the same paths to input, images and "
            f"output"
        )


def answer_fragment(pipeline: Pipeline, job: Job, fragment: Fragment) -> Tally:
    results = [answer_row(pipeline, job.images, row) for row in read_rows(fragment)]
    if len(results) != fragment.rows:
        raise UserError(f"{fragment.file} has changed since the run began: start it again")
    write(job.out / fragment.output, fragment, results)
    return tally_of(results)


def answer_row(pipeline: Pipeline, images: Path, row: Row) -> dict[str, Any]:
    """What the output says of a row besides the row itself."""
    try:
        image, question = asked(row, images)
        answer = pipeline.answer(image, question)
    except Exception as error:  # also a bug that one row shows must not end all the others
        return {**NOT_ANSWERED, "error": _one_line(error)}
    evidence = [{"id": e.id, "title": e.title, "score": e.score} for e in answer.evidence]
    return {
        **NOT_ANSWERED,
        "answer": answer.text,
        "confidence": answer.confidence,
        "grounded": answer.grounded,
        "route": answer.route,
        "evidence": evidence,
        "latency_ms": round(answer.trace.latency_ms, 2),
        "flops": float(answer.trace.flops),
    }


def asked(row: Row, images: Path) -> tuple[ImageSource, str]:
    """The image and the question of a row. An image is a path, bytes, or a dict that has either, as
    Hugging Face datasets store it."""
    if isinstance(row, UserError):
        raise row
    image, question = row.get("image"), row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise UserError("the question is missing or no text")
    if isinstance(image, dict):
        image = image["bytes"] if isinstance(image.get("bytes"), bytes) else image.get("path")
    if isinstance(image, bytes):
        return BytesIO(image), question
    if not isinstance(image, str) or not image:
        raise UserError("the image is missing, or neither a path nor bytes")
    if URL.match(image):
        raise UserError(f"the image is a URL, and none is fetched: {image[:80]}")
    return images / image, question  # an absolute path stays itself


def seconds_per_question(pipeline: Pipeline, job: Job, left: Sequence[Fragment]) -> float:
    """Measured on a few questions from all over what is left, in one thread as in a worker."""
    torch.set_num_threads(1)
    num = min(MOST_MEASURED, 1 + sum(fragment.rows for fragment in left) // PER_MEASURED)
    sampled = left[:: -(-len(left) // num)]
    started = time.perf_counter()
    for fragment in sampled:
        answer_row(pipeline, job.images, next(read_rows(fragment)))
    return (time.perf_counter() - started) / len(sampled)


def _one_line(error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return said if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {said}"
