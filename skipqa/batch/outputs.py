"""The output: a file per fragment, whole or not there, with every input row and what was answered.

Enters: a fragment and a result for each of its rows. Leaves: Parquet from Parquet, JSON Lines from
JSON Lines and CSV. Columns of the input come through as they are. It also reads back how many rows
a file has and how many of them could not be answered, which is how a later run knows what is done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from skipqa.batch.sources import PARQUET, Fragment, read_columns, read_rows
from skipqa.errors import UserError
from skipqa.files import atomic, parse_json

RUN = "_run.json"  # what the folder holds; readers of Parquet folders pass over the underscore
LINES = ".jsonl"
NOT_ANSWERED: Mapping[str, Any] = {
    "answer": None,
    "confidence": None,
    "grounded": None,
    "route": None,
    "evidence": [],
    "latency_ms": None,
    "flops": None,
    "error": None,
}


@dataclass(slots=True)
class Tally:
    """Counts over answered rows."""

    questions: int = 0
    errors: int = 0
    drafted: int = 0  # answered from the draft

    def add(self, other: Tally) -> None:
        self.questions += other.questions
        self.errors += other.errors
        self.drafted += other.drafted


def output_name(name: str, start: int, stop: int) -> str:
    """`photos/a.parquet`, 0, 64: `photos/a-000000000-000000064.parquet`."""
    path = PurePosixPath(name)
    suffix = PARQUET if path.suffix == PARQUET else LINES
    return str(path.with_name(f"{path.stem}-{start:09d}-{stop:09d}{suffix}"))


def tally_of(rows: Sequence[Mapping[str, Any]]) -> Tally:
    errors = sum(row["error"] is not None for row in rows)
    return Tally(len(rows), errors, sum(row["route"] == "draft" for row in rows))


def read_tally(output: Path) -> Tally | None:
    """Counts of an output file; None if there is none or it cannot be read to its end.

    Outputs are renamed into place when they are complete, but a machine that loses its power may
    still leave an empty or short file under the name.
    """
    if not output.exists():
        return None
    rows: list[dict[str, Any]]
    if output.suffix == PARQUET:
        import pyarrow
        import pyarrow.parquet as parquet

        try:
            rows = parquet.ParquetFile(output).read(columns=["route", "error"]).to_pylist()
        except (pyarrow.ArrowException, OSError):
            return None
    else:
        try:
            lines = output.read_text(encoding="utf-8").split("\n")
            rows = [parse_json(line) for line in lines[:-1]]
        except ValueError:  # a `UserError` of a cut line is one, cut UTF-8 as well
            return None
    return tally_of(rows)


def write(path: Path, fragment: Fragment, results: Sequence[Mapping[str, Any]]) -> None:
    with atomic(path) as partial:
        if path.suffix == PARQUET:
            _write_parquet(partial, fragment, results)
        else:
            _write_lines(partial, fragment, results)


def carried_names(names: Iterable[str]) -> dict[str, str]:
    """Columns of the input, each with a name that no column of ours has: `answer`, perhaps the
    right one, becomes `input_answer`."""
    taken = {*(names := list(names)), *NOT_ANSWERED}
    found = {}
    for name in names:
        found[name] = name
        if name in NOT_ANSWERED:
            while found[name] in taken:
                found[name] = f"input_{found[name]}"
            taken.add(found[name])
    return found


def _write_lines(path: Path, fragment: Fragment, results: Sequence[Mapping[str, Any]]) -> None:
    # Half of a surrogate pair, which JSON may hold and UTF-8 may not, is escaped again.
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        rows = zip(read_rows(fragment), results, strict=True)
        for number, (row, result) in enumerate(rows, fragment.start):
            given = {} if isinstance(row, UserError) else row
            names = carried_names(given)
            carried = {names[name]: value for name, value in given.items()}
            file.write(json.dumps({"id": number, **carried, **result}, ensure_ascii=False) + "\n")


def _write_parquet(path: Path, fragment: Fragment, results: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    table = read_columns(fragment)
    table = table.rename_columns(list(carried_names(table.column_names).values()))
    if "id" not in table.column_names:
        numbers = arrow.array(range(fragment.start, fragment.stop), arrow.int64())
        table = table.add_column(0, "id", numbers)
    passage = {"id": arrow.string(), "title": arrow.string(), "score": arrow.float64()}
    types = {
        "answer": arrow.string(),
        "confidence": arrow.float64(),
        "grounded": arrow.bool_(),
        "route": arrow.string(),
        "evidence": arrow.list_(arrow.struct(passage)),
        "latency_ms": arrow.float64(),
        "flops": arrow.float64(),
        "error": arrow.string(),
    }
    for name, kind in types.items():
        column = arrow.array([result[name] for result in results], kind)
        table = table.append_column(name, column)
    parquet.write_table(table, path)
