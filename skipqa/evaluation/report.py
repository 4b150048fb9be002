"""Numbers in the documents, written by a program from results files and checked by a test.

A document holds blocks between `<!-- results: NAME -->` and `<!-- end -->`; `fill` replaces
what stands between with what the block's function makes of the newest results file. Nothing
that was measured is typed by hand.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skipqa.errors import UserError

Results = Mapping[str, Any]
BLOCK = re.compile(r"(<!-- results: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str, folder: Path) -> str:
    """The document with every block written anew."""

    def render(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in BLOCKS:
            raise UserError(f"no block {name!r}; there is {', '.join(BLOCKS)}")
        body = BLOCKS[name](newest(folder, name.replace("-", "_")))
        return f"{match[1]}{body}\n{match[3]}"

    return BLOCK.sub(render, text)


def newest(folder: Path, subject: str) -> Results:
    """The last of `<subject>_<machine>_<yyyymm>.json`."""
    found = sorted(folder.glob(f"{subject}_*_*.json"), key=lambda path: path.stem[-6:])
    found = [path for path in found if re.fullmatch(rf"{subject}_[^_]+_\d{{6}}", path.stem)]
    if not found:
        raise UserError(f"no results of {subject} in {folder}: run its script in benchmarks/ first")
    loaded: Results = json.loads(found[-1].read_text())
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


def _ask(results: Results) -> str:
    runs = results["results"]["runs"]

    def row(label: str, key: str, unit: str) -> list[str]:
        values = [run[key] for run in runs]
        return [label, f"{statistics.median(values):.2f} {unit}", f"{max(values):.2f} {unit}"]

    rows = [
        row("`skipqa ask`, from start to exit", "wall_s", "s"),
        row("of that, in the pipeline", "pipeline_s", "s"),
        row("peak memory", "peak_gb", "GB"),
    ]
    return table(["", "median", "worst"], rows) + "\n" + source(results)


def _class_gloss(results: Results) -> str:
    found = results["results"]
    rows = [
        [kind, str(asked), f"{100 * hits / asked:.1f} %"]
        for kind, (hits, asked) in found["by_kind"].items()
    ]
    rows.append(["all", str(found["photos"]), f"**{100 * found['gloss_in_first_4']:.1f} %**"])
    return table(["photos of", "", "own gloss in the first 4"], rows) + "\n" + source(results)


BLOCKS: dict[str, Callable[[Results], str]] = {"ask": _ask, "class-gloss": _class_gloss}
