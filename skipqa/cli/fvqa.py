"""skipqa data fvqa: the facts of FVQA as a corpus.

It is a verb of `data`, and stands here because `skipqa.data` does not know the benchmarks' files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skipqa.cli.console import Json, plural, print_json


def fvqa(
    data: Annotated[
        Path, typer.Option(help="The folder with train.jsonl and val.jsonl.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The .jsonl file to write.", show_default=False)],
    json: Json = False,
) -> None:
    """Write the facts behind FVQA's questions, of both splits and each once, as a corpus.

    It holds the answers to the validation questions: index it to measure what retrieval is worth,
    not to report a score.

    Examples:

      skipqa data fvqa --data FVQA --out fvqa.jsonl

      skipqa index build fvqa-facts fvqa.jsonl
    """
    from skipqa.tasks.fvqa import write_facts

    count = write_facts(data, out)
    if json:
        print_json({"file": str(out), "facts": count})
    else:
        print(f"{plural(count, 'fact')} in {out}")
