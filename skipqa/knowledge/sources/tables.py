"""JSON Lines, CSV and TSV: one document per row.

A row has a `text`, and optionally an `id` (default: the line number) and a `title`, the subject of
its passages. `contents` and `passage` are read as `text`, because other tools write those.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from skipqa.errors import UserError
from skipqa.knowledge.sources.lines import file_fingerprint, parse_line, read_lines
from skipqa.knowledge.sources.source import BadRow, Document

TEXT_FIELDS = ("text", "contents", "passage")
ID_FIELDS = ("id", "_id", "docid")


class JsonLines:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name.partition(".")[0]

    def fingerprint(self) -> str:
        return file_fingerprint(self.path)

    def read(self) -> Iterator[Document | BadRow]:
        for line in read_lines(self.path):
            if isinstance(line, BadRow):
                yield line
                continue
            number, text = line
            if not text.strip():
                continue
            place = f"{self.path.name}:{number}"
            row = parse_line(text, place)
            if isinstance(row, BadRow):
                yield row
            elif isinstance(row, dict):
                yield _document(row, self.name, number, place)
            else:
                yield BadRow(place, f"a JSON object was expected, found {type(row).__name__}")


class Table:
    """CSV or TSV with a header line; quoted fields may contain line breaks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name.partition(".")[0]
        self.delimiter = "\t" if ".tsv" in path.name.lower() else ","

    def fingerprint(self) -> str:
        return file_fingerprint(self.path)

    def read(self) -> Iterator[Document | BadRow]:
        skipped: list[BadRow] = []
        lines = _Numbered(self.path, skipped)
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
        header: list[str] | None = None
        while True:
            lines.first = 0
            try:
                cells = next(reader, None)
            except csv.Error as error:
                yield BadRow(f"{self.path.name}:{lines.first}", f"invalid row: {error}")
                continue
            if header is None and skipped:  # the next line would be taken for the header
                raise UserError(f"{skipped[0].place}, the header line: {skipped[0].reason}")
            yield from skipped
            skipped.clear()
            if cells is None:
                return
            if header is None:
                header = [name.strip().lower() for name in cells]
                if not set(header) & set(TEXT_FIELDS):
                    raise UserError(
                        f"{self.path.name}: the header line names no `text` column, only "
                        f"{', '.join(header)[:200]}"
                    )
                continue
            place = f"{self.path.name}:{lines.first}"
            if len(cells) != len(header):
                yield BadRow(place, f"{len(cells)} fields, the header has {len(header)}")
            elif any(cells):
                row = dict(zip(header, cells, strict=True))
                yield _document(row, self.name, lines.first, place)


class _Numbered:
    """The readable lines of a file, for `csv.reader`. `first` is the number of the first line
    returned since it was last set to 0."""

    def __init__(self, path: Path, skipped: list[BadRow]) -> None:
        self.first = 0
        self._lines = read_lines(path)
        self._skipped = skipped

    def __iter__(self) -> _Numbered:
        return self

    def __next__(self) -> str:
        for line in self._lines:
            if isinstance(line, BadRow):
                self._skipped.append(line)
            else:
                number, text = line
                self.first = self.first or number
                return text + "\n"
        raise StopIteration


def _document(row: Mapping[str, Any], source: str, number: int, place: str) -> Document | BadRow:
    text = next((row[name] for name in TEXT_FIELDS if name in row), None)
    if text is None:
        return BadRow(place, "no `text` field")
    title = row.get("title", "")
    if not isinstance(text, str) or not isinstance(title, str | None):
        return BadRow(place, "`text` and `title` must be strings")
    if not text.strip():
        return BadRow(place, "`text` is empty")
    given = next((row[name] for name in ID_FIELDS if row.get(name) not in (None, "")), number)
    if not isinstance(given, str | int):
        return BadRow(place, "`id` must be a string or a whole number")
    title = (title or "").strip()
    return Document(f"{source}:{given}", title, text.strip(), source, subject=title)
