"""skipqa data pathvqa: PathVQA from the Hub's Parquet files.

It is a verb of `data`, and stands here because `skipqa.data` does not know the benchmarks' files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skipqa.cli.console import Json, counting, plural, print_json


def pathvqa(
    parquet: Annotated[
        Path, typer.Option(help="The folder with the Parquet files.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.", show_default=False)],
    json: Json = False,
) -> None:
    """Write PathVQA's Parquet files as JSON Lines and photos, as `skipqa eval pathvqa` reads them.

    Needs pip install 'skipqa[parquet]'.

    Examples:

      skipqa data pathvqa --parquet path-vqa/data --out pathvqa

      skipqa eval pathvqa --data pathvqa --split test --index pubmed-index --out runs/pathvqa
    """
    from skipqa.tasks.pathvqa_parquet import convert

    with counting() as report:
        counts = convert(parquet, out, report)
    if json:
        print_json({"folder": str(out), "questions": counts})
    else:
        said = ", ".join(f"{split} {plural(count, 'question')}" for split, count in counts.items())
        print(f"{said} in {out}")
