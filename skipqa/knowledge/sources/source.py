"""What every knowledge source yields: documents, and the rows it could not read.

A source knows nothing of chunks, vectors or indexes, and never holds its corpus in memory. How
to add one is described in `skipqa/knowledge/sources/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Document:
    """`id` is stable across rebuilds. So that every passage can be read on its own, `lead` is put
    before each chunk of the text, and `subject` before each chunk that does not name it. `prose` is
    what people wrote in paragraphs, one per line: it is cut between these and between sentences."""

    id: str
    title: str
    text: str
    source: str
    lead: str = ""
    subject: str = ""
    prose: bool = False


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was skipped: its place (`file:line`) and the reason."""

    place: str
    reason: str


# The documents of one file of a folder, which adds its name and the path of the file: here the `id`
# of a document is its part of the file (such as a chapter, empty for the whole file), its `source`
# is empty, and the `place` of a bad row is a line or a part, or empty. An `OSError` may be raised.
ReadFile = Callable[[Path], Iterator[Document | BadRow]]


class Source(Protocol):
    """A corpus that can be read from the start any number of times, always in the same order."""

    @property
    def name(self) -> str:
        """The name shown to users; also the `source` of its passages."""

    def fingerprint(self) -> str:
        """Changes when the corpus changes. An interrupted build resumes only if it is equal."""

    def read(self) -> Iterator[Document | BadRow]:
        """All documents, in order. A row that cannot be read is yielded, not raised."""
