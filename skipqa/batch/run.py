"""The flow: fragments that are left -> workers of Ray Data -> an output file for each.

Enters: a plan, what the workers share, how many there are. Leaves: counts as fragments are done.
Scheduling, placing workers and starting them again is Ray's. One fragment is one task, read and
written by the worker that answers it: photos never travel through Ray's object store, and a task
that Ray runs twice replaces its file by the same rows.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from skipqa.batch.answering import Answering, Job
from skipqa.batch.fragments import Plan
from skipqa.batch.outputs import RUN, Tally
from skipqa.batch.sources import Fragment, Source
from skipqa.cluster import CLIENT, check, connect, named
from skipqa.costs.environment import available_cores
from skipqa.errors import UserError
from skipqa.files import claim
from skipqa.knowledge.default import DEFAULT
from skipqa.knowledge.engines import parse_uri
from skipqa.pipeline import Pipeline

OBJECT_STORE_BYTES = 128 << 20  # only names and counts travel
RETRIES = 2  # of a fragment whose worker died; Ray's default is to go on for ever
TOLERATED = 4  # fragments that kill every worker, before the run ends early


def claim_folder(
    out: Path, sources: Sequence[Source], pipeline: Pipeline, more: Mapping[str, Any]
) -> None:
    """Write down what is answered with which settings, or refuse a folder that has another run."""
    if not (out / RUN).exists() and out.exists() and any(out.iterdir()):
        raise UserError(f"{out} holds files of something else: choose another folder")
    claim(
        out / RUN,
        {
            "input": {
                source.name: {"rows": source.rows, "sha256": source.sha256} for source in sources
            },
            "index": [
                {"name": name, "passages": len(index)}
                for name, index in pipeline.library.indexes.items()
            ],
            "components": pipeline.components.checksums(),
            "config": dataclasses.asdict(pipeline.config),
            **more,
        },
    )


def absolute(uri: str) -> str:
    """An index as another process names it, whatever folder that runs in."""
    if uri == DEFAULT:
        return uri
    engine, folder, _ = parse_uri(uri)
    _, mark, options = uri.partition("?")
    return f"{engine}:{folder.absolute()}{mark}{options}"


def absolute_source(spec: str) -> str:
    """A knowledge source that every machine of a cluster opens by the same name."""
    kind, _, place = spec.partition(":")
    return f"index:{absolute(place)}" if kind == "index" else spec


@dataclasses.dataclass(frozen=True, slots=True)
class Cores:
    """Of the Ray that is connected: all, and those that nobody has reserved."""

    all: int
    free: int


def head_of_cluster(address: str) -> str:
    """The address that the user named, if any, known to answer."""
    if (address := named(address)).startswith(CLIENT):
        raise UserError(
            f"{address}: Ray Data does not work through a Ray client; run the command on a machine "
            f"of the cluster and give the address of its head"
        )
    if address:
        check(address)
    return address


@contextmanager
def connected(workers: int, address: str = "") -> Iterator[Cores]:
    """Ray for the block: the cluster at `address`, or one started here and stopped at the end.

    What Ray says of workers that died goes to standard error; its own choice is standard output.
    """
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    already = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    with _stderr_to_nowhere():
        ray = connect(
            "skipqa batch",
            address,
            num_cpus=max(workers, available_cores()),
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    try:
        with redirect_stdout(sys.stderr):
            all_cores = int(ray.cluster_resources().get("CPU", 0))
            yield Cores(max(1, all_cores), int(ray.available_resources().get("CPU", 0)))
    finally:
        if not already:
            ray.shutdown()


@contextmanager
def _stderr_to_nowhere() -> Iterator[None]:
    """Ray's C++ side announces its own log level on file descriptor 2, whatever that level is."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def answer(
    plan: Plan, job: Job, workers: int, progress: Callable[[int, int], None] = lambda *_: None
) -> Tally:
    """Answer what is left with this many workers, inside `connected`. Counts of all fragments,
    those of earlier runs too."""
    import ray.exceptions

    tally = dataclasses.replace(plan.before)
    total = plan.questions
    progress(tally.questions, total)
    missing = {fragment.output: fragment for fragment in plan.left}
    try:
        for row in _flow(plan.left, job, workers):
            if row["failed"]:
                raise UserError(f"{missing[row['output']]}: {row['failed']}")
            del missing[row["output"]]
            tally.add(Tally(row["questions"], row["errors"], row["drafted"]))
            progress(tally.questions, total)
    except ray.exceptions.RayError as error:
        raise UserError(
            f"the workers cannot go on ({_last_line(error)}): what is answered stays, run the same "
            f"command again, perhaps with fewer workers"
        ) from error
    if missing:
        first = next(iter(missing.values()))
        raise UserError(
            f"{len(missing)} of {len(plan.fragments)} fragments killed their workers, the first is "
            f"{first}; all others are answered"
        )
    for partial in job.out.rglob("*.partial"):  # what killed runs left; nobody writes any more
        partial.unlink(missing_ok=True)
    return tally


def _flow(fragments: Sequence[Fragment], job: Job, workers: int) -> Iterator[dict[str, Any]]:
    """A row of counts per fragment, as they are done."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_errored_blocks = TOLERATED
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    rows = [dataclasses.asdict(fragment) for fragment in fragments]
    # A task works on one block, so each fragment is one.
    todo = ray.data.from_items(rows, override_num_blocks=len(rows))
    with warnings.catch_warnings():
        # Ray deprecates this parameter, and has no other for how often a task is tried again.
        warnings.filterwarnings("ignore", message=".*ray_remote_args_fn")
        answered = todo.map_batches(
            Answering,
            fn_constructor_args=(job,),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
            num_cpus=1,
            ray_remote_args_fn=lambda: {"max_task_retries": RETRIES},
        )
    yield from answered.iter_rows()


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
