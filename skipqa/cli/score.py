"""skipqa score: the official score of a predictions file."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from skipqa.cli.console import Json, err, out, plural, print_json, working
from skipqa.errors import UserError, choices
from skipqa.tasks import SCORE_FILES, Report


def score(
    benchmark: Annotated[
        str, typer.Argument(help=f"One of {', '.join(SCORE_FILES)}.", show_default=False)
    ],
    predictions: Annotated[
        Path | None, typer.Option(help="Predictions, in the benchmark's own layout.")
    ] = None,
    annotations: Annotated[
        Path | None, typer.Option(help="Annotations (okvqa, vqav2, aokvqa).")
    ] = None,
    questions: Annotated[Path | None, typer.Option(help="Questions (okvqa, vqav2).")] = None,
    references: Annotated[
        Path | None, typer.Option(help="The data set with its answers (infoseek, evqa, viquae).")
    ] = None,
    qtypes: Annotated[Path | None, typer.Option(help="Question types (infoseek).")] = None,
    bem: Annotated[
        Path | None, typer.Option(help="Folder of the BEM model (evqa); without it: exact match.")
    ] = None,
    qrels: Annotated[
        Path | None, typer.Option(help="Relevant passages, JSON or TREC (viquae-retrieval).")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Retrieved passages, JSON or TREC (viquae-retrieval).")
    ] = None,
    json: Json = False,
) -> None:
    """Score a predictions file exactly as the benchmark's official code does, in percent.

    Where a benchmark has no predictions file of its own (evqa, viquae): a JSON list in row
    order, or a JSON object id -> answer (evqa: the row number, from 0).

    Examples:

      skipqa score okvqa --predictions p.json --questions q.json --annotations a.json

      skipqa score aokvqa --predictions predictions_val.json --annotations aokvqa_v1p0_val.json

      skipqa score infoseek --predictions p.jsonl --references infoseek_val.jsonl --qtypes
      infoseek_val_qtype.jsonl --json

      skipqa score evqa --predictions p.json --references test.csv

      skipqa score viquae --predictions p.json --references test.jsonl
    """
    given = {
        "predictions": predictions,
        "annotations": annotations,
        "questions": questions,
        "references": references,
        "qtypes": qtypes,
        "bem": bem,
        "qrels": qrels,
        "run": run,
    }
    files = {name: path for name, path in given.items() if path is not None}
    _check_options(benchmark, files)
    with working(f"scoring {benchmark}"):
        report = SCORE_FILES[benchmark](**files)
    for note in report.notes:
        err.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    if json:
        print_json(report.as_dict())
    else:
        show(report)


def show(report: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    pairing = report.pairing
    asked, answered = pairing.num_questions, pairing.num_predictions
    out.print(f"{plural(asked, 'question')}, {plural(answered, 'prediction')}")
    table = Table(report.benchmark)
    table.add_column("percent", justify="right")
    for name, value in report.scores.items():
        if not isinstance(value, Mapping):
            table.add_row(name, f"{value:.2f}")
            continue
        table.add_row(name, "")
        for group, part in value.items():
            table.add_row(Text(f"  {group}"), f"{part:.2f}")
    out.print(table)


def _check_options(benchmark: str, files: Mapping[str, Path]) -> None:
    """The parameters of a scoring function are its options; those with a default may be absent."""
    if benchmark not in SCORE_FILES:
        raise UserError(
            f"unknown benchmark {benchmark!r}: use one of {choices(benchmark, SCORE_FILES)}"
        )
    possible = inspect.signature(SCORE_FILES[benchmark]).parameters
    for name, parameter in possible.items():
        if name not in files and parameter.default is parameter.empty:
            raise UserError(f"skipqa score {benchmark} needs --{name}")
    for name in files:
        if name not in possible:
            raise UserError(f"skipqa score {benchmark} has no use for --{name}")
