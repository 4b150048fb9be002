"""What went wrong, over whole runs: the bucket of every wrong answer, by rules on its record.

The rules are those of `skipqa report failures`, which also shows pictures. Nothing is asked again.

    python benchmarks/failures.py --pocket-kb FOLDER RUN [RUN …]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.table import Table

from skipqa.assets import sha256_of
from skipqa.cli.console import err, out
from skipqa.costs.environment import write_results
from skipqa.errors import UserError
from skipqa.evaluation.reports.failures import Bucket, assigned, table
from skipqa.evaluation.reports.runs import read_run
from skipqa.tasks.pocket_kb import POCKET_KB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders that `skipqa eval` wrote")
    parser.add_argument("--pocket-kb", type=Path, required=True, help="made by `skipqa data`")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    (file,) = POCKET_KB.files(options.pocket_kb, "val")
    examples = {one.id: one for one in POCKET_KB.load(options.pocket_kb, "val")}
    found: list[dict[str, Any]] = []
    for folder in options.runs:
        run = read_run(folder)
        if run.about["questions"].get("sha256") != sha256_of(file):
            raise UserError(f"{file} is not the file of questions that {folder} answered")
        buckets = assigned(run.records, examples)
        rows = table(buckets, len(run.records))
        found.append(
            {
                "run": run.variant,
                "on": run.title,
                "asked": len(run.records),
                "wrong": len(buckets),
                "components": run.about.get("components"),
                "buckets": rows,
            }
        )
    shown = Table("what went wrong", *(f"{one['run']}, {one['on']}" for one in found))
    for place, bucket in enumerate(Bucket):
        cells = (one["buckets"][place] for one in found)
        shown.add_row(bucket, *(f"{c['wrong']} ({100 * c['of_wrong']:.0f} %)" for c in cells))
    out.print(shown)
    err.print(f"written to {write_results(found, 'failures', options.out)}")


if __name__ == "__main__":
    main()
