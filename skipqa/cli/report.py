"""skipqa report: write measured numbers from results files into documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skipqa.cli.console import err, print_json
from skipqa.errors import UserError


def report(
    documents: Annotated[
        list[Path], typer.Argument(help="Markdown files with result blocks.", show_default=False)
    ],
    results: Annotated[Path, typer.Option(help="Folder of results files.")] = Path(
        "benchmarks/results"
    ),
    check: Annotated[bool, typer.Option(help="Write nothing; fail if anything is stale.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fill the blocks `<!-- results: NAME -->` … `<!-- end -->` of documents.

    Examples:

      skipqa report README.md

      skipqa report README.md LOG.md --check
    """
    from skipqa.evaluation.report import fill

    stale = []
    for document in documents:
        if not document.is_file():
            raise UserError(f"no such file: {document}")
        old = document.read_text(encoding="utf-8")
        new = fill(old, results)
        if new != old:
            stale.append(str(document))
            if not check:
                document.write_text(new, encoding="utf-8")
    if json:
        print_json({"changed": stale, "written": not check})
    elif not check:
        err.print(f"changed: {', '.join(stale) or 'nothing'}")
    if check and stale:
        raise UserError(f"stale: {', '.join(stale)}; run `skipqa report {' '.join(stale)}`")
