"""What the commands share: where they write, and how they report long work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from skipqa.assets import Report

out = Console()
err = Console(stderr=True)


def print_json(value: Any) -> None:
    """Plain JSON on standard output: no colours, no wrapping, whatever the terminal."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


@contextmanager
def working(first: str) -> Iterator[Report]:
    """A spinner on standard error whose text the work may change; steps that are done stay."""
    with err.status(first) as status:

        def report(message: str) -> None:
            status.update(message)
            if not err.is_terminal:
                err.print(message)

        yield report


@contextmanager
def counting() -> Iterator[Callable[[str, int, int | None], None]]:
    """Progress bars on standard error: call the value with (what, done, of how many)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=err) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


def use_all_cores() -> None:
    import torch

    from skipqa.costs.environment import available_cores

    torch.set_num_threads(available_cores())
