"""All knowledge sources. To add one, write a reader here and register it in this file.

1. Write a module in this folder with a class that follows the protocol `Source` (source.py):
   `name`, `fingerprint()` and `read()`, which yields `Document`s and `BadRow`s. `wordnet.py` is a
   short example of a built-in corpus, `tables.py` of a file format.
2. Register it below: a corpus with a name in `BUILT_IN`, a file format in `FILE_FORMATS`.
3. Add a test to tests/knowledge/test_sources.py.

`skipqa index build`, resuming, progress estimates and error messages then work with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from skipqa.errors import UserError, choices
from skipqa.knowledge.sources import factbook, tables, texts, wikidata, wikipedia, wordnet
from skipqa.knowledge.sources.source import BadRow, Document, Source

__all__ = ["BUILT_IN", "FILE_FORMATS", "BadRow", "Document", "Source", "open_source"]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A corpus that is downloaded on first use."""

    open: Callable[[], Source]
    passages: int  # about how many it has, to estimate the time and size of a build


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A kind of file, recognized by how its name ends."""

    open: Callable[[Path], Source]
    endings: tuple[str, ...]


BUILT_IN: Mapping[str, BuiltIn] = {
    "wordnet": BuiltIn(wordnet.WordNet, passages=117_816),
    "factbook": BuiltIn(factbook.Factbook, passages=38_788),
}
FILE_FORMATS = (
    FileFormat(texts.Texts, texts.ENDINGS),
    FileFormat(tables.JsonLines, (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.bz2")),
    FileFormat(tables.Table, (".csv", ".tsv", ".csv.gz", ".tsv.gz")),
    FileFormat(wikipedia.Wikipedia, (".xml", ".xml.bz2", ".xml.gz")),
    FileFormat(wikidata.Wikidata, (".json", ".json.bz2", ".json.gz")),
)


def open_source(spec: str) -> Source:
    """The source for the name of a built-in corpus, a file (by its ending) or a folder of texts."""
    if spec in BUILT_IN:
        return BUILT_IN[spec].open()
    path = Path(spec).expanduser()
    if not path.exists():
        raise UserError(
            f"no corpus at {spec}: give a file, a folder, or one of the built-in "
            f"{choices(spec, BUILT_IN)}"
        )
    if path.is_dir():
        return texts.Texts(path)
    name = path.name.lower()
    for known in FILE_FORMATS:
        if name.endswith(known.endings):
            return known.open(path)
    if name.endswith(texts.PDF):
        raise UserError(
            f"{path.name} is a PDF: convert it to text first (for example `pdftotext {path.name}`) "
            "and give the .txt file"
        )
    endings = ", ".join(ending for known in FILE_FORMATS for ending in known.endings)
    raise UserError(
        f"{path.name}: unknown kind of corpus, convert it first; supported are folders of texts "
        f"and files ending in {endings}"
    )
