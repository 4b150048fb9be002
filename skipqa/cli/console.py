"""Shared by the commands: options, output, and progress of long operations."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from skipqa.assets import Report
from skipqa.config import PRESETS

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# Options of every command that loads a pipeline
Indexes = Annotated[
    list[str] | None,
    typer.Option(
        "--index",
        metavar="DIR",
        help="Index to search: a folder, ENGINE:folder, or `default` for the default corpora. Can "
        "be repeated; without `default`, the default corpora are not searched.",
        show_default="default",
    ),
]
KnowledgeSources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="SOURCE",
        help="Ask for names that the indexes lack: wikidata, sparql:URL, json:URL#FIELDS or "
        "index:DIR. Can be repeated.",
    ),
]
ComponentsFolder = Annotated[
    Path | None,
    typer.Option(help="Folder of trained components. Default: those shipped with the preset."),
]
Preset = Annotated[str, typer.Option(help=f"Models and budgets: {', '.join(PRESETS)}.")]
WeightsFolder = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the published models of a larger preset. Default: the Hugging Face cache."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="STAGE.NAME=VALUE", help="Change a setting. Can be repeated."),
]
Untrained = Annotated[
    bool,
    typer.Option("--untrained", help="Answer without the trained components."),
]

# What is printed are users' words: a passage id such as "conceptnet:coffee:2" holds no emoji, and a
# question or a folder with "[/x]" in its name no markup. Styles are given by `Text` and `style=`.
out = Console(markup=False, emoji=False)
err = Console(stderr=True, markup=False, emoji=False)


def plural(number: int, noun: str) -> str:
    """`1 passage`, `2,000 passages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def megabytes(size: int) -> str:
    return "less than 1 MB" if size < 1e6 else f"{size / 1e6:,.0f} MB"


def print_json(value: Any) -> None:
    """Plain JSON on standard output: no colours and no wrapping on any terminal. Characters that a
    stream of another encoding might lack are escaped."""
    escaped = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
    print(json.dumps(value, indent=2, ensure_ascii=escaped))


def print_facts(facts: Mapping[str, Any]) -> None:
    """A line for each, its name in bold."""
    for name, value in facts.items():
        shown = value if isinstance(value, str | int | float) else json.dumps(value)
        out.print(Text.assemble((name.replace("_", " "), "bold"), f": {shown}"))


@contextmanager
def working(first: str) -> Iterator[Report]:
    """A spinner on standard error; call the value to change its text. Where standard error is no
    terminal, every text is printed as a line."""
    with err.status(Text(first)) as status:  # which takes a plain string for markup

        def report(message: str) -> None:
            status.update(Text(message))
            if not err.is_terminal:
                err.print(message)

        yield report


@contextmanager
def counting(expected: int | None = None) -> Iterator[Callable[[str, int, int | None], None]]:
    """Progress bars on standard error: call the value with (step, done, total).

    If the total is None, `expected` is used.
    """
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=err) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if total is None and expected is not None:
                total = max(expected, done)
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


def prepare_process() -> None:
    """Uses every core, unless OMP_NUM_THREADS says how many, and makes glibc keep freed memory for
    large tensors.

    Otherwise glibc returns each large activation to the system and pages it in again, which takes a
    third of the time of the vision encoder.
    """
    import torch

    from skipqa.costs.environment import available_cores

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(available_cores())
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:  # absent in musl
            for setting in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
                mallopt(setting, 1 << 30)
