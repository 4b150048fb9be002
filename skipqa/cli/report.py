"""skipqa report: measured numbers as documents, tables, figures and failure sheets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skipqa.cli.console import err, out, print_json, working
from skipqa.errors import UserError

app = typer.Typer(no_args_is_help=True, help="Turn measurements into documents.")

RESULTS = Path("benchmarks/results")
Results = Annotated[Path, typer.Option(help="Folder of results files of the benchmarks.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("documents")
def documents(
    files: Annotated[
        list[Path], typer.Argument(help="Markdown files with result blocks.", show_default=False)
    ],
    results: Results = RESULTS,
    check: Annotated[bool, typer.Option(help="Write nothing; fail if anything is stale.")] = False,
    json: Json = False,
) -> None:
    """Fill the blocks `<!-- results: NAME -->` … `<!-- end -->` of documents.

    Examples:

      skipqa report documents README.md

      skipqa report documents README.md LOG.md --check
    """
    from skipqa.evaluation.report import fill

    stale = []
    for document in files:
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
        again = f"skipqa report documents {' '.join(stale)}"
        raise UserError(f"stale: {', '.join(stale)}; run `{again}`")


@app.command("runs")
def runs(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folders that `skipqa eval` wrote.", show_default=False),
    ],
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for report.md and figures.")],
    reference: Annotated[
        str | None,
        typer.Option(help="The system that others are held against: dense, or the first run."),
    ] = None,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Tables, figures and the verdicts on the paper's claims from finished runs.

    Runs are compared on the questions that both answered; runs over different files of
    questions get sections of their own.

    Examples:

      skipqa report runs runs/skip runs/dense runs/no-retrieval --out report

      skipqa report runs runs/* --out report --reference no-retrieval
    """
    with working("reading the runs"):
        from skipqa.evaluation.reports.document import write

        written = write(folders, out_folder, results, reference)
    if json:
        print_json(written)
        return
    from rich.table import Table

    table = Table("", "measured here", "verdict", title="The paper's claims")
    for claim in written["claims"]:
        table.add_row(str(claim["number"]), claim["measured"], claim["verdict"])
    out.print(table)
    err.print(f"written: {written['report']} and {len(written['figures'])} figures")
