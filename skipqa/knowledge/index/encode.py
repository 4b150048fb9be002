"""The first half of a build: documents from the sources become parts on disk (see `parts`).

Enters: a `Job` and a journal, which says how far an earlier, interrupted run came. Leaves: finished
parts, named by the journal. It knows nothing of manifests or of an index that may already exist.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skipqa.files import is_text
from skipqa.knowledge.chunk import MAX_TOKENS, OVERLAP, Chunk, chunk
from skipqa.knowledge.index.parts import Journal, PartWriter
from skipqa.knowledge.sources import BadRow, Document, Source
from skipqa.knowledge.sparse_encoder import SparseEncoder
from skipqa.knowledge.vectors import SparseRows

Embed = Callable[[list[str]], NDArray[np.floating]]
Report = Callable[[str, int, int | None], None]  # the step, how much is done, of how much if known


def silent(step: str, done: int, total: int | None) -> None:
    """Reports nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How an index is built; stored in its manifest."""

    max_tokens: int = MAX_TOKENS
    overlap: int = OVERLAP
    list_limit: int = 1 << 16  # rows kept per list: no search reads further
    shards: int = 1  # number of segments; a cluster distributes them over its workers


@dataclass(frozen=True, slots=True)
class Execution:
    """How a build runs. None of this changes the index that comes out."""

    report: Report = silent
    batch_documents: int = 4_096  # encoded at once
    part_rows: int = 1 << 17  # a killed build loses at most one part


@dataclass(frozen=True, slots=True)
class Job:
    """Sources to encode, and how. `verb` names the new segments: build or add."""

    verb: str
    sources: Sequence[Source]
    encoder: SparseEncoder
    settings: Settings
    embed: Embed | None
    execution: Execution

    def fingerprint(self) -> str:
        """Equal for jobs with the same parts, so that one can resume the other."""
        everything = [
            self.verb,
            [source.fingerprint() for source in self.sources],
            self.encoder.config(),
            repr(self.settings),
            bool(self.embed),
        ]
        return hashlib.sha256(json.dumps(everything).encode()).hexdigest()


def encode(journal: Journal, job: Job) -> None:
    """Writes the source rows that the journal does not cover yet as further parts."""
    progress, settings, execution = journal.progress, job.settings, job.execution
    done = sum(journal.rows_of_parts)
    everything = itertools.chain.from_iterable(source.read() for source in job.sources)
    unread = itertools.islice(everything, progress.rows_read, None)
    writer: PartWriter | None = None
    for rows in _batches(unread, execution.batch_documents):
        documents: list[Document] = []
        for row in rows:
            if isinstance(row, Document) and not _is_text(row):
                row = BadRow(repr(row.id)[1:-1], "not valid Unicode: half of a character")
            if isinstance(row, BadRow):
                progress.skip(row)
            else:
                documents.append(row)
        progress.rows_read += len(rows)
        writer = writer or PartWriter(journal.next_part, job.encoder.ceiling, job.embed is not None)
        chunks = list(
            chunk(documents, job.encoder.tokenizer, settings.max_tokens, settings.overlap)
        )
        if chunks:
            writer.append(chunks, *_vectors(chunks, job))
        execution.report("encoding", done + writer.rows, None)
        if writer.rows >= execution.part_rows:
            done += _close(journal, writer)
            writer = None
    if writer is not None:
        _close(journal, writer)


def _is_text(document: Document) -> bool:
    said = (document.id, document.title, document.text, document.lead, document.subject)
    return all(map(is_text, said))


def _vectors(chunks: list[Chunk], job: Job) -> tuple[SparseRows, NDArray[np.floating] | None]:
    passages = [c.passage for c in chunks]
    embeddings = job.embed([p.text for p in passages]) if job.embed else None
    return job.encoder.encode_passages(passages), embeddings


def _close(journal: Journal, writer: PartWriter) -> int:
    writer.close()
    journal.commit(writer.rows)
    return writer.rows


def _batches(rows: Iterable[Document | BadRow], size: int) -> Iterator[list[Document | BadRow]]:
    iterator = iter(rows)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
