"""`python -m skipqa.training`: as `skipqa train`, where typer and rich are not installed, and in
several processes that `torchrun` or `accelerate launch` starts."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from skipqa.errors import UserError
from skipqa.training.processes import joined
from skipqa.training.run import Run
from skipqa.training.stage import POCKET, Inputs
from skipqa.training.stages import NAMES, train
from skipqa.training.summaries import HELP


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m skipqa.training", description=__doc__)
    parser.add_argument("stage", choices=NAMES, help=HELP)
    parser.add_argument("--data", type=Path, help="of all stages but splade")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default=POCKET)
    parser.add_argument("--pocket-kb", type=Path)
    parser.add_argument("--components", type=Path)
    parser.add_argument("--index", action="append", default=[], help="may be repeated")
    parser.add_argument("--records", type=Path)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--limit", type=int)
    parser.add_argument(
        "--accumulate", type=int, default=1, help="batches per step, over all processes"
    )
    parser.add_argument("--settings", type=Path, metavar="FILE", help="TOML, a table per stage")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    options = parser.parse_args()

    def progress(what: str, done: int, total: int, loss: float | None) -> None:
        suffix = "" if loss is None else f"  loss {loss:.3f}"
        print(f"{what} {done:,}/{total:,}{suffix}", file=sys.stderr)

    inputs = Inputs(
        data=options.data,
        pocket_kb=options.pocket_kb,
        limit=options.limit,
        components=options.components,
        index=tuple(options.index),
        records=options.records,
        preset=options.preset,
        settings=options.settings,
    )
    with joined() as processes:
        run = Run(
            options.out,
            options.seed,
            processes=processes,
            accumulate=options.accumulate,
        )
        if processes.rank == 0:  # the others are silent
            say = partial(print, file=sys.stderr)
            run = replace(run, progress=progress, say=say)
        metrics = train(options.stage, inputs, run, options.changes)
        if processes.rank == 0:
            print(json.dumps(metrics, indent=1))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
