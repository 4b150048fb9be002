"""skipqa train: a stage of training, from data to the files that answering reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from skipqa.cli.console import err, out, prepare_process, print_json
from skipqa.training.summaries import HELP

if TYPE_CHECKING:
    from skipqa.training.run import Progress as Report


def train(
    stage: Annotated[
        str,
        typer.Argument(metavar="STAGE", help=HELP),
    ],
    out_folder: Annotated[
        Path,
        typer.Option(
            "--out", help="Folder for the results; a stopped run resumes there.", show_default=False
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="The folder with okvqa/, coco/ and vqav2/; splade needs none."),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="Whose parts are trained; a stage that cannot says why.")
    ] = "pocket",
    pocket_kb: Annotated[
        Path | None,
        typer.Option(
            "--pocket-kb",
            help="Pocket-KB as built: trained on, all but the photos that it holds out.",
        ),
    ] = None,
    components: Annotated[
        Path | None,
        typer.Option(
            help="What later stages begin with: an earlier one's folder; else what is bundled."
        ),
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="Where passages come from, in all stages but fast_path; can be repeated. One of "
            "them has Pocket-KB's.",
            show_default="default",
        ),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="Records that stages 2 to 6 gather and share; else next to the results."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 2026,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many rows of each file, for a trial.")
    ] = None,
    accumulate: Annotated[
        int, typer.Option(min=1, help="Batches per step, whose gradients are averaged.")
    ] = 1,
    settings_file: Annotated[
        Path | None,
        typer.Option("--settings", metavar="FILE", help="TOML with a table per stage."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; repeatable."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Train a stage: the first on one GPU in minutes, the others on two cores in minutes each.

    Writes the trained parts as safetensors, config.json, metrics.json and metrics.jsonl; with
    `pip install 'skipqa[train]'` also TensorBoard's logs. Stopped or killed, the same command
    resumes. The same seed gives the same files on the same machine without a GPU. Several processes
    train together by `torchrun -m skipqa.training`, see docs/distributed.md.

    Examples:

      skipqa train stage1 --data data --pocket-kb pocket-kb --out runs/stage1

      skipqa train stage1 --data data --out runs/trial --limit 200 --set reader.epochs=0.1

      skipqa train stage4 --data data --pocket-kb pocket-kb --index default --index pocket-kb/index
      --components runs/stage3 --out runs/stage4

      skipqa train all --data data --pocket-kb pocket-kb --index default --index pocket-kb/index
      --out runs --json

      skipqa train reader --preset desk --data data --pocket-kb pocket-kb --index default --index
      pocket-kb/index --out runs/desk

      skipqa train splade --pocket-kb pocket-kb --index default --index pocket-kb/index --out
      runs/splade
    """
    from skipqa.training import stages
    from skipqa.training.run import Run
    from skipqa.training.stage import Inputs

    prepare_process()
    with live() as progress:
        run = Run(
            out_folder,
            seed,
            progress,
            lambda line: err.print(line, highlight=False),
            accumulate=accumulate,
        )
        inputs = Inputs(
            data=data,
            pocket_kb=pocket_kb,
            limit=limit,
            components=components,
            index=tuple(index or ()),
            records=records,
            preset=preset,
            settings=settings_file,
        )
        metrics = stages.train(stage, inputs, run, settings or ())
    if json:
        print_json(metrics)
    elif "shipped" in metrics.get("reader", {}):
        show(metrics)
    else:
        show_compared(metrics)


@contextmanager
def live() -> Iterator[Report]:
    """One bar per part, with the latest loss and the remaining time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    more = TextColumn("{task.fields[loss]}"), TimeRemainingColumn(elapsed_when_finished=True)
    bars = Progress(*columns, *more, console=err)
    tasks: dict[str, TaskID] = {}

    def report(what: str, done: int, total: int, loss: float | None) -> None:
        bars.start()  # not before: bad input is one line and nothing else
        if what not in tasks:
            tasks[what] = bars.add_task(what, loss="")
        shown = "" if loss is None else f"loss {loss:.3f}"
        bars.update(tasks[what], completed=done, total=total, loss=shown)

    try:
        yield report
    finally:
        if tasks:
            bars.stop()


def show(metrics: dict[str, Any]) -> None:
    """Accuracies in per cent, one row per set of questions."""
    from rich.table import Table

    read = metrics["reader"]["shipped"]
    columns = {"question alone": read["blind"], "and image": read["unread"]}
    if "drafter" in metrics:  # stage I trains one, too
        columns["drafter"] = metrics["drafter"]["shipped"]
    columns["reader"] = read["few"]
    if joint := metrics["reader"].get("joint"):  # not where the reader does not ship
        columns["both"] = {name: row["accuracy"] for name, row in joint.items()}
    table = Table("accuracy, %", *columns)
    for name in read["few"]:
        table.add_row(name, *(f"{100 * column[name]:.1f}" for column in columns.values()))
    out.print(table)


def show_compared(metrics: dict[str, Any]) -> None:
    """Every comparison of something trained with the training-free stage, or with what answered
    before."""
    from rich.table import Table

    table = Table("held-out questions", "trained", "training-free or before")

    def walk(where: tuple[str, ...], found: Any) -> None:
        if not isinstance(found, dict):
            return
        others = found.get("training_free", found.get("before"))
        if {"before", "shipped"} <= found.keys():  # of a reader, by the form of its prompts
            for form, scores in found["before"].items():
                walk((*where, form), {"trained": found["shipped"][form], "before": scores})
        elif "trained" in found and others is not None:
            for name, value in found["trained"].items():
                if isinstance(value, float):
                    table.add_row(" ".join((*where, name)), f"{value:.3f}", f"{others[name]:.3f}")
        elif {"adaptive", "fixed_at_equal_flops"} <= found.keys():
            own, fixed = found["adaptive"]["score"], found["fixed_at_equal_flops"]
            table.add_row(" ".join((*where, "score")), f"{own:.3f}", f"{fixed:.3f}")
        elif {"threshold", "accuracy", "full"} <= found.keys():
            table.add_row(
                " ".join((*where, "with drafts, full path")),
                f"{found['accuracy']:.3f}",
                f"{found['full']:.3f}",
            )
        else:
            for name, value in found.items():
                walk((*where, name), value)

    walk((), metrics)
    out.print(table)
