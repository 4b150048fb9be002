"""Where knowledge comes from: a source yields documents, and the rows it could not read.

Enters: the name of a built-in corpus, a file or a folder. Leaves: a stream of `Document`
and `BadRow`. A source knows nothing of chunks, vectors or indexes, and never holds its
corpus in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from skipqa.errors import UserError, choices


@dataclass(frozen=True, slots=True)
class Document:
    """`id` is stable over rebuilds. `lead` opens every chunk, so that each reads well alone."""

    id: str
    title: str
    text: str
    source: str
    lead: str = ""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was skipped: where it stood (`file:line`) and why."""

    place: str
    reason: str


class Source(Protocol):
    """A corpus that can be read from its start any number of times, always in the same order."""

    @property
    def name(self) -> str:
        """What a person would call it; also the `source` of its passages."""

    def fingerprint(self) -> str:
        """Changes when the corpus does: a stopped build resumes only over the same one."""

    def read(self) -> Iterator[Document | BadRow]: ...


def open_source(spec: str) -> Source:
    """The reader for `wordnet`, `factbook`, or a path, chosen by the path's ending."""
    from skipqa.knowledge.sources import factbook, tables, texts, wikidata, wikipedia, wordnet

    built_in: dict[str, type[Source]] = {"wordnet": wordnet.WordNet, "factbook": factbook.Factbook}
    if spec in built_in:
        return built_in[spec]()
    path = Path(spec).expanduser()
    if not path.exists():
        raise UserError(
            f"no corpus at {spec}: give a file, a folder, or one of the built-in "
            f"{choices(spec, built_in)}"
        )
    if path.is_dir():
        return texts.Texts(path)
    name = path.name.lower()
    readers: list[tuple[Callable[[Path], Source], tuple[str, ...]]] = [
        (texts.Texts, texts.ENDINGS),
        (tables.JsonLines, (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.bz2")),
        (tables.Table, (".csv", ".tsv", ".csv.gz", ".tsv.gz")),
        (wikipedia.Wikipedia, (".xml", ".xml.bz2", ".xml.gz")),
        (wikidata.Wikidata, (".json", ".json.bz2", ".json.gz")),
    ]
    for reader, endings in readers:
        if name.endswith(endings):
            return reader(path)
    if name.endswith(texts.PDF):
        raise UserError(
            f"{path.name} is a PDF: convert it to text first (for example `pdftotext {path.name}`) "
            "and give the .txt file"
        )
    raise UserError(
        f"{path.name}: unknown kind of corpus; known are .jsonl, .csv, .tsv, .txt, .md, .html, "
        "a folder of texts, a Wikipedia .xml.bz2 and a Wikidata .json.bz2: convert it first"
    )
