"""Estimates the passages, disk space and time of a build, without reading the whole corpus.

Of a file the first megabytes are read as a build would read them, and the rest is assumed to be
like them. The constants were measured on two cores of a server CPU (benchmarks/corpora.py measures
them again). Expect an error of up to a half, and of the time up to a factor of two.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skipqa.knowledge.chunk import MAX_TOKENS, OVERLAP
from skipqa.knowledge.sources import BUILT_IN, DOCUMENT_READERS, Document, open_source
from skipqa.knowledge.sources.lines import COMPRESSED, UNREADABLE

SAMPLE_BYTES = 4 << 20
CHARACTERS_PER_TOKEN = 4.4
CHARACTERS_PER_PASSAGE = 300  # of texts in a folder
INDEX_BYTES_PER_PASSAGE = 100  # ids, and what every vector has
INDEX_BYTES_PER_CHARACTER = 1.7  # vectors, lists and text, with the lexical encoder
CHARACTERS_PER_SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Estimate:
    passages: int
    index_bytes: int
    seconds: float  # with the lexical encoder; SPLADE is far slower


@dataclass(frozen=True, slots=True)
class _Size:
    """Of the passages of a corpus."""

    passages: float = 0.0
    characters: float = 0.0

    def plus(self, other: _Size, times: float = 1.0) -> _Size:
        return _Size(
            self.passages + times * other.passages, self.characters + times * other.characters
        )


def estimate(specs: Sequence[str]) -> Estimate:
    size = _Size()
    for spec in specs:
        path = Path(spec).expanduser()
        if spec in BUILT_IN:
            size = size.plus(_Size(BUILT_IN[spec].passages, BUILT_IN[spec].characters))
        elif path.is_dir() or path.suffix.lower() in DOCUMENT_READERS:
            size = size.plus(_of_texts(path))
        elif path.is_file():
            size = size.plus(_of_file(path))
    bytes_of_index = (
        INDEX_BYTES_PER_PASSAGE * size.passages + INDEX_BYTES_PER_CHARACTER * size.characters
    )
    return Estimate(
        passages=max(1, round(size.passages)),
        index_bytes=round(bytes_of_index),
        seconds=size.characters / CHARACTERS_PER_SECOND,
    )


def _of_texts(path: Path) -> _Size:
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(
        file.stat().st_size
        for file in files
        if file.suffix.lower() in DOCUMENT_READERS and file.is_file()
    )
    return _Size(size / CHARACTERS_PER_PASSAGE, size)


def _of_file(path: Path) -> _Size:
    """Scaled up from the beginning of the file, which is read from a copy with the same ending."""
    with path.open("rb") as raw:
        try:
            sample = COMPRESSED.get(path.suffix.lower(), _same)(raw, "rb").read(SAMPLE_BYTES)
        except UNREADABLE:
            return _Size()  # the build says what is wrong with it
        fraction_read = raw.tell() / max(1, path.stat().st_size)
    compressed = path.suffix.lower() in COMPRESSED
    with tempfile.TemporaryDirectory(prefix="skipqa-sample-") as folder:
        copy = Path(folder) / (path.stem if compressed else path.name)
        copy.write_bytes(sample)
        size = _Size()
        for row in open_source(str(copy)).read():
            if isinstance(row, Document):
                size = size.plus(_of_document(row))
    return _Size().plus(size, 1 / max(fraction_read, 1e-9))


def _same(raw: io.BufferedReader, _: str) -> io.BufferedReader:
    return raw


def _of_document(document: Document) -> _Size:
    tokens = len(document.text) / CHARACTERS_PER_TOKEN
    lead = document.lead or document.subject
    room = MAX_TOKENS - min(len(lead) / CHARACTERS_PER_TOKEN, MAX_TOKENS / 2)
    overlap = min(OVERLAP, room - 1)
    passages = 1 + max(0, -(-(tokens - room) // (room - overlap)))
    repeated = (passages - 1) * overlap * CHARACTERS_PER_TOKEN
    return _Size(passages, len(document.text) + passages * len(document.lead) + repeated)
