"""Results files that benchmarks leave, and how what they hold is put into tables.

`<subject>_<machine>_<yyyymm>.json` has a header (machine, versions, commit, command) and the
results. `newest` reads the last of a subject; the rest writes its numbers in Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skipqa.errors import UserError
from skipqa.files import read_json

Results = Mapping[str, Any]
ABSENT = "–"


class NoResults(UserError):
    """A benchmark that has not been run."""


def newest(folder: Path, subject: str) -> Results:
    """The last of `<subject>_<machine>_<yyyymm>.json`."""
    found = sorted(folder.glob(f"{subject}_*_*.json"), key=lambda path: path.stem[-6:])
    found = [path for path in found if re.fullmatch(rf"{subject}_[^_]+_\d{{6}}", path.stem)]
    if not found:
        raise NoResults(f"no results of {subject} in {folder}: run its script in benchmarks/ first")
    loaded: Results = read_json(found[-1])
    return loaded


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def source(results: Results) -> str:
    """Where the numbers above it come from."""
    machine = results["machine"]
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
    torch = results["versions"].get("torch", "none")
    return (
        f"\n`{results['command']}` on {where}; Python {results['python']}, torch {torch}, "
        f"commit {results['commit']}, {results['date']}."
    )


def span(interval: Mapping[str, float], factor: float, form: str) -> str:
    """An interval of `skipqa.evaluation.statistics`, without its mean."""
    return f"{factor * interval['low']:{form}} to {factor * interval['high']:{form}}"


def percent(interval: Mapping[str, float]) -> str:
    return f"{100 * interval['mean']:.1f} ({span(interval, 100, '.0f')})"
