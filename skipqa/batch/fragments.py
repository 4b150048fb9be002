"""What is to do and what is done: the input cut into fragments, each with an output file.

Enters: a Parquet or JSON Lines file, or a folder of them. Leaves: fragments of at most `size`
consecutive rows of one file; the name of a fragment's output follows from the file's name and the
rows alone. A fragment is done when its output is there with all of its rows, which are then counted
(`Tally`). It knows nothing of pipelines or of Ray.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from skipqa.assets import sha256_of
from skipqa.errors import UserError
from skipqa.files import parse_json

PARQUET = ".parquet"
JSON_LINES = (".jsonl", ".ndjson")
REQUIRED = ("image", "question")


@dataclass(frozen=True, slots=True)
class Source:
    """An input file. `offsets` are the bytes at which its fragments start, if it has lines."""

    path: Path
    name: str  # relative to the input folder, with slashes
    rows: int
    sha256: str
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fragment:
    """Rows `start` to `stop`, the last one excluded, of a file."""

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


@dataclass(slots=True)
class Plan:
    """The fragments in order, and which of them are done."""

    fragments: list[Fragment]
    left: list[Fragment] = field(default_factory=list)
    before: Tally = field(default_factory=Tally)  # of those that earlier runs finished

    @property
    def questions(self) -> int:
        return sum(fragment.rows for fragment in self.fragments)


def find_sources(given: Path, size: int, *, leave_out: Path) -> list[Source]:
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
            if path.suffix in (PARQUET, *JSON_LINES)
            and not any(part.startswith((".", "_")) for part in path.relative_to(given).parts)
            and apart not in path.resolve().parents
        ]
    sources = [_source(path.absolute(), path.relative_to(root).as_posix(), size) for path in paths]
    if not sum(source.rows for source in sources):
        raise UserError(f"{given} holds no questions: give a .parquet or .jsonl file, or a folder")
    return sources


def cut(sources: Iterable[Source], size: int, limit: int | None = None) -> list[Fragment]:
    """Every row of every source, or the first `limit` rows, in fragments of at most `size`."""
    fragments = []
    left = limit
    for source in sources:
        rows = source.rows if left is None else min(left, source.rows)
        left = None if left is None else left - rows
        for number, start in enumerate(range(0, rows, size)):
            stop = min(start + size, rows)
            offset = source.offsets[number] if source.offsets else 0
            name = output_name(source.name, start, stop)
            fragments.append(Fragment(str(source.path), start, stop, name, offset))
    return fragments


def output_name(name: str, start: int, stop: int) -> str:
    """`photos/a.parquet`, 0, 64: `photos/a-000000000-000000064.parquet`."""
    path = PurePosixPath(name)
    return str(path.with_name(f"{path.stem}-{start:09d}-{stop:09d}{path.suffix}"))


def tally_of(rows: Sequence[Mapping[str, Any]]) -> Tally:
    errors = sum(row["error"] is not None for row in rows)
    return Tally(len(rows), errors, sum(row["path"] == "draft" for row in rows))


def plan(fragments: Sequence[Fragment], out: Path) -> Plan:
    """What is left to answer: fragments whose output is missing or not whole."""
    found = Plan(list(fragments))
    for fragment in fragments:
        tally = read_tally(out / fragment.output)
        if tally is None or tally.questions != fragment.rows:
            found.left.append(fragment)
        else:
            found.before.add(tally)
    return found


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
            rows = parquet.ParquetFile(output).read(columns=["path", "error"]).to_pylist()
        except (pyarrow.ArrowException, OSError):
            return None
    else:
        try:
            rows = [
                parse_json(line) for line in output.read_text(encoding="utf-8").split("\n")[:-1]
            ]
        except ValueError:  # a `UserError` of a cut line is one, cut UTF-8 as well
            return None
    return tally_of(rows)


def read_rows(fragment: Fragment) -> Iterator[tuple[int, Any]]:
    """The number of each row in its file, and the row: a dict, or whatever else its line holds, or
    the `UserError` that says why it cannot be read."""
    path = Path(fragment.file)
    if path.suffix == PARQUET:
        return _parquet_rows(path, fragment.start, fragment.stop)
    return _json_rows(path, fragment)


def id_type(fragment: Fragment) -> Any:
    """The Arrow type of ids in a Parquet file; integers where the rows are counted."""
    import pyarrow
    import pyarrow.parquet as parquet

    schema = parquet.read_schema(fragment.file)
    return schema.field("id").type if "id" in schema.names else pyarrow.int64()


def _source(path: Path, name: str, size: int) -> Source:
    if path.suffix == PARQUET:
        return _parquet_source(path, name)
    if path.suffix in JSON_LINES:
        return _json_source(path, name, size)
    raise UserError(f"{path} is neither a .parquet nor a .jsonl file")


def _parquet_source(path: Path, name: str) -> Source:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} is not a Parquet file that can be read: {reason}") from None
    schema = file.schema_arrow
    for column in REQUIRED:
        if column not in schema.names:
            raise UserError(f"{path} lacks the column {column!r}; it has {', '.join(schema.names)}")
    if "id" in schema.names:
        kind, types = schema.field("id").type, pyarrow.types
        if not (types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)):
            raise UserError(f"{path}: the column 'id' must hold strings or integers, found {kind}")
    return Source(path, name, file.metadata.num_rows, sha256_of(path))


def _json_source(path: Path, name: str, size: int) -> Source:
    """One pass counts the rows, takes the checksum and notes where each fragment starts."""
    digest = hashlib.sha256()
    rows = position = 0
    offsets = []
    with path.open("rb") as file:
        for line in file:
            digest.update(line)
            if line.strip():
                if rows % size == 0:
                    offsets.append(position)
                rows += 1
            position += len(line)
    return Source(path, name, rows, digest.hexdigest(), tuple(offsets))


def _parquet_rows(path: Path, start: int, stop: int) -> Iterator[tuple[int, Any]]:
    """Only the row groups that hold the rows are read, a few rows at a time."""
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(path)
    groups: list[int] = []
    first = ends = 0
    for number in range(file.num_row_groups):
        begins, ends = ends, ends + file.metadata.row_group(number).num_rows
        if begins < stop and ends > start:
            first = first if groups else begins
            groups.append(number)
    columns = [name for name in ("id", *REQUIRED) if name in file.schema_arrow.names]
    row = first
    for batch in file.iter_batches(16, row_groups=groups, columns=columns):
        if row >= stop:
            return
        skipped = max(0, start - row)
        for number, value in enumerate(batch.slice(skipped).to_pylist(), row + skipped):
            if number < stop:
                yield number, value
        row += len(batch)


def _json_rows(path: Path, fragment: Fragment) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        file.seek(fragment.offset)
        lines = islice((line for line in file if line.strip()), fragment.rows)
        for number, line in enumerate(lines, fragment.start):
            try:
                yield number, parse_json(line.decode("utf-8-sig"))
            except UnicodeDecodeError:
                yield number, UserError("not UTF-8 text")
            except UserError as error:
                yield number, error
