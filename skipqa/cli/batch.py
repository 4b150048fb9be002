"""skipqa batch: the questions of a file or a folder, answered into a folder."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipqa.cli.console import (
    ComponentsFolder,
    Indexes,
    KnowledgeSources,
    Preset,
    Settings,
    Untrained,
    WeightsFolder,
    counting,
    err,
    megabytes,
    plural,
    print_json,
    working,
)

if TYPE_CHECKING:
    from skipqa.batch.answering import Job
    from skipqa.batch.fragments import Plan
    from skipqa.batch.outputs import Tally


def batch(
    questions: Annotated[
        Path, typer.Argument(help="Parquet, JSON Lines or CSV file, or a folder of such files.")
    ],
    out_folder: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder for the answers; a stopped run goes on.")
    ],
    images: Annotated[
        Path | None,
        typer.Option(help="Folder that paths of images start from. Default: that of the input."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Pipelines at work, one thread each; 0: one per core.")
    ] = 0,
    address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Head of a running Ray cluster; also: RAY_ADDRESS. Default: Ray is started here.",
        ),
    ] = "",
    fragment: Annotated[int, typer.Option(min=1, help="Questions per output file.")] = 64,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Answer only this many questions, the first ones.")
    ] = None,
    index: Indexes = None,
    source: KnowledgeSources = None,
    components: ComponentsFolder = None,
    preset: Preset = "pocket",
    weights: WeightsFolder = None,
    untrained: Untrained = False,
    settings: Settings = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Answer many questions with Ray Data, on this machine or on a cluster.

    Needs `pip install 'skipqa[ray]'`. Columns of the input: image (a path, or bytes), question, and
    id if there is one; all others come through. After a kill, the same command answers what is
    left.

    Examples:

      skipqa batch questions.parquet answers --workers 4

      skipqa batch questions.csv answers --images photos --limit 100

      skipqa batch /data/questions /data/answers --address 10.0.0.5:6379 --workers 64
    """
    from skipqa.errors import MissingExtra

    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtra("skipqa batch", "ray") from error
    from skipqa.batch import run
    from skipqa.batch.answering import Job, seconds_per_question
    from skipqa.batch.fragments import cut, plan
    from skipqa.batch.sources import find_sources
    from skipqa.config import read_settings
    from skipqa.pipeline import load

    started = time.perf_counter()
    address = run.head_of_cluster(address)  # before anything that takes time
    loaded: dict[str, Any] = {
        "name": preset,
        "index": None if index is None else [run.absolute(uri) for uri in index],
        "components": None if components is None else str(components.absolute()),
        "trained": not untrained,
        "weights": None if weights is None else str(weights.absolute()),
        "overrides": read_settings(settings or ()),
        "sources": [run.absolute_source(spec) for spec in source or ()],
    }
    root = (images or (questions if questions.is_dir() else questions.parent)).absolute()
    job = Job(loaded, root, out_folder.absolute())
    with working("reading the input") as report:
        sources = find_sources(questions, fragment, leave_out=out_folder, report=report)
        report("reading the models")
        pipeline = load(**loaded, report=report)
        more = {"images": str(root), "fragment": fragment, "limit": limit}
        if pipeline.sources:
            more["sources"] = list(pipeline.sources.identities)
        run.claim_folder(out_folder, sources, pipeline, more)
        todo = plan(cut(sources, fragment, limit), out_folder)
    size = megabytes(sum(source.bytes for source in sources))
    err.print(
        f"{plural(todo.questions, 'question')} in {plural(len(sources), 'file')} ({size}): "
        f"{plural(len(todo.fragments), 'fragment')}, {todo.num_done:,} done",
        highlight=False,
    )
    tally = todo.before
    workers_used = 0
    if todo.left:
        with working("measuring a few questions"):
            seconds = seconds_per_question(pipeline, job, todo.left)
        del pipeline  # the workers have their own
        tally, workers_used = _answer(Ahead(todo, job, seconds), workers, address)
    summary = {
        **dataclasses.asdict(tally),
        "fragments": len(todo.fragments),
        "fragments_done_before": todo.num_done,
        "answered_now": tally.questions - todo.before.questions,
        "workers": workers_used,
        "seconds": round(time.perf_counter() - started, 2),
        "out": str(out_folder),
    }
    if json:
        print_json(summary)
    else:
        _show(summary)


@dataclasses.dataclass(frozen=True, slots=True)
class Ahead:
    """What is left to do, and how long a question takes."""

    todo: Plan
    job: Job
    question_s: float

    def seconds(self, workers: int) -> float:
        return self.question_s * self.todo.questions_left / workers


def _answer(ahead: Ahead, workers: int, address: str) -> tuple[Tally, int]:
    """The counts of all fragments, and how many workers there were."""
    from skipqa.batch import run

    if address:
        err.print(f"connecting to the cluster at {address}", highlight=False)
    with run.connected(workers, address) as cores:
        num = min(workers or cores.all, cores.all, len(ahead.todo.left))
        about = f"{plural(num, 'worker')}, about {duration(ahead.seconds(num))} once they are ready"
        if cores.free < num:
            about += f"; {cores.free} of {plural(cores.all, 'core')} are free, more workers wait"
        elif num < workers and num == cores.all:
            about += "; the cluster has no more cores"
        err.print(about, highlight=False)
        with counting() as bar:
            return run.answer(
                ahead.todo, ahead.job, num, lambda done, total: bar("answering", done, total)
            ), num


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def _show(summary: dict[str, Any]) -> None:
    if answered := summary["answered_now"]:
        took = duration(summary["seconds"])
        err.print(f"{plural(answered, 'question')} in {took}", highlight=False)
    else:
        err.print("all questions were answered before")
    if summary["errors"]:
        told = plural(summary["errors"], "question")
        err.print(f"not answered: {told}; the column `error` says why", highlight=False)
    print(summary["out"])
