"""A folder of documents, or one of its files: every file is read by the reader of its ending.

Enters: a path, a table of readers, and which other files are worth a word because people take them
for documents too. Leaves: documents whose ids are relative paths, in the order of the paths. It
knows nothing of any format.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from skipqa.errors import UserError
from skipqa.knowledge.sources.lines import file_fingerprint
from skipqa.knowledge.sources.source import BadRow, Document, ReadFile


class Folder:
    def __init__(
        self,
        path: Path,
        readers: Mapping[str, ReadFile],
        unread: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`unread`: endings of files that are reported, and why they are not read."""
        self.path = path
        self.readers = readers
        self.unread = unread
        self.name = path.resolve().name
        self.folder = path if path.is_dir() else path.parent
        if not any(file.suffix.lower() in readers for file in self._files()):
            *others, last = readers
            known = f"{', '.join(others)} or {last}" if others else last
            first = next(self._files(), None)
            why = "" if first is None else f" ({first.name}: {unread[first.suffix.lower()]})"
            raise UserError(f"{path} holds no {known} file{why}")

    def fingerprint(self) -> str:
        everything = "\n".join(map(file_fingerprint, self._files()))
        return hashlib.sha256(os.fsencode(everything)).hexdigest()

    def read(self) -> Iterator[Document | BadRow]:
        for path in self._files():
            place = path.relative_to(self.folder).as_posix()
            if (reason := self.unread.get(path.suffix.lower())) is not None:
                yield BadRow(place, reason)
                continue
            try:
                for row in self.readers[path.suffix.lower()](path):
                    yield self._placed(row, place)
            except OSError as error:
                yield BadRow(place, f"cannot be read: {error.strerror}")

    def _placed(self, row: Document | BadRow, place: str) -> Document | BadRow:
        """What a reader found, with the name of the folder and the path of the file."""
        if isinstance(row, BadRow):
            return replace(row, place=_within(place, row.place))
        return replace(row, id=_within(f"{self.name}:{place}", row.id), source=self.name)

    def _files(self) -> Iterator[Path]:
        for path in sorted(self.path.rglob("*")) if self.path.is_dir() else [self.path]:
            ending = path.suffix.lower()
            if (ending in self.readers or ending in self.unread) and path.is_file():
                yield path


def _within(file: str, part: str) -> str:
    return f"{file}:{part}" if part else file
