"""The input: files of questions, what they hold, and the rows of a part of one.

Enters: a Parquet, JSON Lines or CSV file, or a folder of them. Leaves: a `Source` per file, with
the number of its rows and the places where fragments start, so that a worker reads its own rows and
no others. A row that cannot be read is a `UserError` in its place, and the others are read. It
knows nothing of answers.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from skipqa.assets import Report, sha256_of
from skipqa.errors import UserError
from skipqa.files import is_text, kind_of, parse_json

PARQUET, CSV = ".parquet", ".csv"
JSON_LINES = (".jsonl", ".ndjson")
SUFFIXES = (PARQUET, *JSON_LINES, CSV)
REQUIRED = ("image", "question")
FEW = 16  # rows of a Parquet file that are in memory at a time: they may be photos

Row = dict[str, Any] | UserError


@dataclass(frozen=True, slots=True)
class Source:
    """An input file. `offsets` are the bytes at which its fragments start, if it has lines."""

    path: Path
    name: str  # relative to the input folder, with slashes
    rows: int
    bytes: int
    sha256: str
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fragment:
    """Rows `start` to `stop`, the last one excluded, of a file; plain values that Ray carries."""

    file: str
    start: int
    stop: int
    output: str  # relative to the output folder
    offset: int = 0  # in bytes, of the first row of a file of lines

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"rows {self.start} to {self.stop - 1} of {self.file}"


def find_sources(
    given: Path, size: int, *, leave_out: Path, report: Report = lambda _: None
) -> list[Source]:
    """The input files in the order of their names; outputs below `leave_out` are none."""
    if not given.exists():
        raise UserError(f"{given} does not exist")
    root, paths = given.parent, [given]
    if given.is_dir():
        root, apart = given, leave_out.resolve()
        if apart == given.resolve():
            raise UserError(f"{given} cannot be both the input and the output folder")
        paths = [
            path
            for path in sorted(given.rglob("*"))
            if path.suffix in SUFFIXES
            and not any(part.startswith((".", "_")) for part in path.relative_to(given).parts)
            and apart not in path.resolve().parents
        ]
    sources = []
    for path in paths:
        report(f"reading {path.name}")
        sources.append(_scan(path.absolute(), path.relative_to(root).as_posix(), size))
    if not sum(source.rows for source in sources):
        raise UserError(
            f"{given} holds no questions: give a .parquet, .jsonl or .csv file, or a folder of them"
        )
    return sources


def read_rows(fragment: Fragment) -> Iterator[Row]:
    """The rows of a fragment, in order; of Parquet only the columns that are required."""
    path = Path(fragment.file)
    if path.suffix == PARQUET:
        return _parquet_rows(path, fragment)
    return _csv_rows(path, fragment) if path.suffix == CSV else _json_rows(path, fragment)


def read_columns(fragment: Fragment) -> Any:
    """An Arrow table of all columns of a Parquet fragment, images as their paths, or without them
    where they are bytes."""
    import pyarrow as arrow
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(fragment.file)
    kind = file.schema_arrow.field("image").type
    is_path = arrow.types.is_string(kind) or arrow.types.is_large_string(kind)
    has_path = arrow.types.is_struct(kind) and kind.get_field_index("path") >= 0
    image = ["image"] if is_path else ["image.path"] if has_path else []  # never bytes
    names = file.schema_arrow.names
    columns = [part for name in names for part in (image if name == "image" else [name])]
    groups, first = _row_groups(file, fragment)
    table = file.read_row_groups(groups, columns=columns)
    table = table.slice(fragment.start - first, fragment.rows).replace_schema_metadata(None)
    if has_path:
        number = table.schema.get_field_index("image")
        paths = compute.struct_field(table.column("image"), "path")
        table = table.set_column(number, "image", paths)
    return table


def _scan(path: Path, name: str, size: int) -> Source:
    if path.suffix == PARQUET:
        return _scan_parquet(path, name)
    if path.suffix == CSV:
        return _scan_csv(path, name, size)
    if path.suffix in JSON_LINES:
        return _scan_json(path, name, size)
    raise UserError(f"{path} is neither a .parquet nor a .jsonl nor a .csv file")


def _check_columns(path: Path, names: Sequence[str]) -> None:
    for column in REQUIRED:
        if column not in names:
            raise UserError(f"{path} lacks the column {column!r}; it has {', '.join(names)}")
    if repeated := sorted({name for name in names if list(names).count(name) > 1}):
        raise UserError(f"{path} has the column {repeated[0]!r} more than once")


def _scan_parquet(path: Path, name: str) -> Source:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} is not a Parquet file that can be read: {reason}") from None
    _check_columns(path, file.schema_arrow.names)
    return Source(path, name, file.metadata.num_rows, path.stat().st_size, sha256_of(path))


class _Lines:
    """The lines of a file, with what was read of it so far."""

    def __init__(self, path: Path) -> None:
        self.path, self.position, self.digest = path, 0, hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            for line in file:
                self.digest.update(line)
                self.position += len(line)
                yield line


def _scan_lines(
    path: Path, name: str, size: int, rows_of: Callable[[_Lines], Iterable[Any]]
) -> Source:
    """One pass counts the rows, takes the checksum and notes where each fragment starts. `rows_of`
    makes rows of lines, as many lines for a row as it has; an empty one is none."""
    lines = _Lines(path)
    offsets, rows, start = [], 0, 0
    for row in rows_of(lines):
        if row:
            if rows % size == 0:
                offsets.append(start)
            rows += 1
        start = lines.position
    return Source(path, name, rows, lines.position, lines.digest.hexdigest(), tuple(offsets))


def _scan_json(path: Path, name: str, size: int) -> Source:
    return _scan_lines(path, name, size, lambda lines: (line.strip() for line in lines))


def _scan_csv(path: Path, name: str, size: int) -> Source:
    def rows(lines: _Lines) -> Iterator[list[str]]:
        found = _csv_reader(lines)
        try:
            _check_columns(path, _header(next(found, [])))
            yield []  # the header is no row
            yield from found
        except csv.Error as error:
            raise UserError(f"{path} line {found.line_num}: not CSV: {error}") from None

    return _scan_lines(path, name, size, rows)


def _csv_reader(lines: Iterable[bytes]) -> Any:
    """Bytes that are no UTF-8 come through as surrogates, which end no row."""
    csv.field_size_limit(1 << 30)
    return csv.reader((line.decode("utf-8", "surrogateescape") for line in lines), strict=True)


def _header(fields: Sequence[str]) -> list[str]:
    """The names of the columns; a byte order mark is no part of the first."""
    return [field.removeprefix("\ufeff") for field in fields]


def _csv_rows(path: Path, fragment: Fragment) -> Iterator[Row]:
    with path.open("rb") as file:
        names = _header(next(_csv_reader(file)))
    with path.open("rb") as file:
        file.seek(fragment.offset)
        rows = (fields for fields in _csv_reader(file) if fields)
        for fields in islice(rows, fragment.rows):
            if len(fields) != len(names):
                yield UserError(f"{len(fields)} fields, but the header has {len(names)}")
            elif not all(map(is_text, fields)):
                yield UserError("not UTF-8 text")
            else:
                yield dict(zip(names, fields, strict=True))


def _json_rows(path: Path, fragment: Fragment) -> Iterator[Row]:
    with path.open("rb") as file:
        file.seek(fragment.offset)
        for line in islice((line for line in file if line.strip()), fragment.rows):
            try:
                row = parse_json(line.decode("utf-8-sig"))
            except UnicodeDecodeError:
                yield UserError("not UTF-8 text")
            except UserError as error:
                yield error
            else:
                found = kind_of(row)
                yield (
                    row
                    if isinstance(row, dict)
                    else UserError(f"expected an object, found {found}")
                )


def _row_groups(file: Any, fragment: Fragment) -> tuple[list[int], int]:
    """The row groups of a Parquet file that hold a fragment, and the number of their first row."""
    groups: list[int] = []
    first = stop = 0
    for number in range(file.num_row_groups):
        start, stop = stop, stop + file.metadata.row_group(number).num_rows
        if start < fragment.stop and stop > fragment.start:
            first = first if groups else start
            groups.append(number)
    return groups, first


def _parquet_rows(path: Path, fragment: Fragment) -> Iterator[Row]:
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(path)
    groups, row = _row_groups(file, fragment)
    for batch in file.iter_batches(FEW, row_groups=groups, columns=list(REQUIRED)):
        if row >= fragment.stop:
            return
        skipped = max(0, fragment.start - row)
        yield from batch.slice(skipped, max(0, fragment.stop - row - skipped)).to_pylist()
        row += len(batch)
