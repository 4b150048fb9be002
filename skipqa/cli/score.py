"""skipqa score: the official score of a predictions file."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from skipqa.cli.console import Json, err, out, plural, print_json, working
from skipqa.cli.options import Declared, declared, flag, grouped, option
from skipqa.errors import UserError, choices
from skipqa.tasks import SCORE_FILES, Report


def _file_options() -> Iterator[inspect.Parameter]:
    """An option for each file that a scoring function reads, with the benchmarks that use it."""
    readers: dict[str, list[str]] = {}
    first: dict[str, Declared] = {}
    for benchmark, scorer in SCORE_FILES.items():
        for file in declared(scorer):
            readers.setdefault(file.name, []).append(benchmark)
            first.setdefault(file.name, file)
    for name, file in first.items():
        yield option(name, Path | None, f"{file.what} ({', '.join(readers[name])}).", None)


@partial(grouped, more=_file_options())
def score(
    benchmark: Annotated[
        str, typer.Argument(help=f"One of {', '.join(SCORE_FILES)}.", show_default=False)
    ],
    json: Json = False,
    **given: Path | None,
) -> None:
    """Score a predictions file exactly as the benchmark's official code does, in percent.

    Where a benchmark has no predictions file of its own (evqa, viquae, fvqa, pathvqa): a JSON list
    in row order, or a JSON object id -> answer (evqa, pathvqa: the row number, from 0).

    Examples:

      skipqa score okvqa --predictions p.json --questions q.json --annotations a.json

      skipqa score aokvqa --predictions predictions_val.json --annotations aokvqa_v1p0_val.json

      skipqa score infoseek --predictions p.jsonl --references infoseek_val.jsonl --qtypes
      infoseek_val_qtype.jsonl --json

      skipqa score evqa --predictions p.json --references test.csv

      skipqa score viquae --predictions p.json --references test.jsonl

      skipqa score fvqa --predictions p.json --references val.jsonl

      skipqa score pathvqa --predictions p.json --references test.jsonl

      skipqa score llava-bench --reviews reviews.jsonl --questions questions.jsonl
    """
    files = {name: path for name, path in given.items() if path is not None}
    _check_options(benchmark, files)
    with working(f"scoring {benchmark}"):
        report = SCORE_FILES[benchmark](**files)
    for note in report.notes:
        err.print(f"note: {note}", highlight=False, soft_wrap=True)
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
    possible = {file.name: file for file in declared(SCORE_FILES[benchmark])}
    for name, file in possible.items():
        if name not in files and file.default is inspect.Parameter.empty:
            raise UserError(f"skipqa score {benchmark} needs {flag(name)}")
    for name in files:
        if name not in possible:
            raise UserError(f"skipqa score {benchmark} has no use for {flag(name)}")
