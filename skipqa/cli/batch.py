"""skipqa batch: the questions of a file or a folder, answered into a folder."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from skipqa.cli.console import (
    ComponentsFolder,
    Indexes,
    Preset,
    Settings,
    Untrained,
    WeightsFolder,
    counting,
    err,
    plural,
    print_json,
    working,
)


def batch(
    questions: Annotated[
        Path, typer.Argument(help="Parquet or JSON Lines file, or a folder of such files.")
    ],
    out_folder: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder for the answers; a stopped run goes on.")
    ],
    images: Annotated[
        Path | None,
        typer.Option(help="Folder that paths of images start from. Default: that of the input."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Pipelines at work; 0: one per two cores.")
    ] = 0,
    fragment: Annotated[int, typer.Option(min=1, help="Questions per output file.")] = 64,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Answer only this many questions, the first ones.")
    ] = None,
    index: Indexes = None,
    components: ComponentsFolder = None,
    preset: Preset = "pocket",
    weights: WeightsFolder = None,
    untrained: Untrained = False,
    settings: Settings = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Answer many questions with Ray Data, on this machine or on a cluster.

    Needs `pip install 'skipqa[ray]'`. Columns of the input: image (a path, or bytes), question, and
    id if there is one. RAY_ADDRESS names a running cluster. After a kill, the same command answers
    what is left.

    Examples:

      skipqa batch questions.parquet answers --workers 4

      skipqa batch questions.jsonl answers --images photos --limit 100

      RAY_ADDRESS=10.0.0.5:6379 skipqa batch questions answers --workers 64
    """
    from skipqa.batch import run
    from skipqa.batch.answering import Job
    from skipqa.batch.fragments import cut, find_sources, plan
    from skipqa.config import read_settings
    from skipqa.pipeline import load

    started = time.perf_counter()
    loaded: dict[str, Any] = {
        "name": preset,
        "index": None if index is None else [run.absolute(uri) for uri in index],
        "components": None if components is None else str(components.absolute()),
        "trained": not untrained,
        "weights": None if weights is None else str(weights.absolute()),
        "overrides": read_settings(settings or ()),
    }
    root = (images or (questions if questions.is_dir() else questions.parent)).absolute()
    with working("reading the input"):
        sources = find_sources(questions, fragment, leave_out=out_folder)
        more = {"images": str(root), "fragment": fragment, "limit": limit}
        run.claim_folder(out_folder, sources, load(**loaded), more)
        todo = plan(cut(sources, fragment, limit), out_folder)
    num_files, num_fragments = len(sources), len(todo.fragments)
    num_done = num_fragments - len(todo.left)
    sizes = (
        f"{plural(todo.questions, 'question')} in {plural(num_files, 'file')}: "
        f"{plural(num_fragments, 'fragment')}, {num_done:,} done"
    )
    if todo.left:
        if address := os.environ.get("RAY_ADDRESS"):  # Ray tries for a minute and more
            err.print(f"connecting to the cluster at {address}", highlight=False)
        with run.connected(workers) as cores:
            workers = min(workers or max(1, cores // 2), len(todo.left))
            err.print(f"{sizes}, {plural(workers, 'worker')}", highlight=False)
            job = Job(loaded, root, out_folder.absolute(), threads=0 if workers == 1 else 1)
            with counting() as bar:
                tally = run.answer(
                    todo, job, workers, lambda done, total: bar("answering", done, total)
                )
    else:
        err.print(sizes, highlight=False)
        workers, tally = 0, todo.before
    seconds = time.perf_counter() - started
    answered = tally.questions - todo.before.questions
    summary = {
        **dataclasses.asdict(tally),
        "fragments": num_fragments,
        "fragments_done_before": num_done,
        "answered_now": answered,
        "workers": workers,
        "seconds": round(seconds, 2),
        "out": str(out_folder),
    }
    if json:
        print_json(summary)
        return
    if answered:
        err.print(f"{plural(answered, 'question')} in {seconds:,.0f} s", highlight=False)
    else:
        err.print("all questions were answered before")
    if tally.errors:
        told = plural(tally.errors, "question")
        err.print(f"not answered: {told}; the column `error` says why", highlight=False)
    print(out_folder)
