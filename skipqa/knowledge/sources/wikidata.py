"""A Wikidata JSON dump, streamed: each entity becomes sentences made from its statements.

The dump is one JSON array with one entity per line. An entity is kept if it has at least three
properties and its sentences have at least fifty words. Statements refer to properties, and often
to values, by number only, so the dump is read twice: the first pass writes every label into a
database on disk, the second makes the sentences. Only one entity is in memory at a time.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from skipqa.knowledge.sources.lines import file_fingerprint, parse_line, read_lines
from skipqa.knowledge.sources.source import BadRow, Document
from skipqa.knowledge.triples import Statement, sentences

NAME = "wikidata"
MIN_WORDS = 50
MIN_PROPERTIES = 3
# Most .json files of people's own are lists of documents
NOT_AN_ENTITY = "no id, so no entity of Wikidata; rows of your own are read from a .jsonl or .csv"
MAX_ENTITY_BYTES = 16 << 20  # some entities (countries, papers) are far larger than a text row


class Wikidata:
    def __init__(self, path: Path, language: str = "en") -> None:
        self.path = path
        self.name = NAME
        self.language = language

    def fingerprint(self) -> str:
        return f"{file_fingerprint(self.path)} {self.language}"

    def read(self) -> Iterator[Document | BadRow]:
        with tempfile.TemporaryDirectory(prefix="skipqa-wikidata-") as folder:
            labels = _Labels(Path(folder) / "labels.sqlite")
            labels.fill(self._labels())
            for place, entity in self._entities():
                if isinstance(entity, BadRow):
                    yield entity
                    continue
                try:
                    document = self._document(entity, labels)
                except (KeyError, TypeError, AttributeError) as error:
                    yield BadRow(place, f"not an entity: {error!r}")
                else:
                    if document is not None:
                        yield document

    def _labels(self) -> Iterator[tuple[str, str]]:
        """Of those that have one; an entity that cannot be read is reported by the second pass."""
        for _, entity in self._entities():
            if isinstance(entity, dict):
                with suppress(TypeError, AttributeError):
                    if label := self._words(entity.get("labels")):
                        yield entity["id"], label

    def _entities(self) -> Iterator[tuple[str, dict[str, Any] | BadRow]]:
        for line in read_lines(self.path, MAX_ENTITY_BYTES):
            if isinstance(line, BadRow):
                yield line.place, line
                continue
            number, text = line
            text = text.strip().rstrip(",")
            if text in ("", "[", "]"):
                continue
            place = f"{self.path.name}:{number}"
            entity = parse_line(text, place)
            if isinstance(entity, BadRow) or (
                isinstance(entity, dict) and isinstance(entity.get("id"), str)
            ):
                yield place, entity
            else:
                yield place, BadRow(place, NOT_AN_ENTITY)

    def _document(self, entity: Mapping[str, Any], labels: _Labels) -> Document | None:
        """None if the entity is filtered out, which is not an error."""
        claims = entity.get("claims") or {}
        label = self._words(entity.get("labels"))
        if not label or len(claims) < MIN_PROPERTIES:
            return None
        aliases = (entity.get("aliases") or {}).get(self.language, [])
        statements = (
            Statement(
                labels.get(name) or name,
                tuple(v for s in stated if (v := self._value(s["mainsnak"], labels))),
            )
            for name, stated in claims.items()
        )
        described = self._words(entity.get("descriptions"))
        told = sentences(label, statements, described, [alias["value"] for alias in aliases])
        text = " ".join(told)
        if len(text.split()) < MIN_WORDS:
            return None
        return Document(f"wikidata:{entity['id']}", label, text, "wikidata", subject=label)

    def _words(self, by_language: Mapping[str, Any] | None) -> str:
        found = (by_language or {}).get(self.language, {}).get("value", "")
        if not isinstance(found, str):
            raise TypeError(f"{found!r} is no text")
        return found

    def _value(self, snak: Mapping[str, Any], labels: _Labels) -> str:
        if snak["snaktype"] != "value":
            return ""
        value, kind = snak["datavalue"]["value"], snak["datavalue"]["type"]
        if kind == "string":
            return "" if snak.get("datatype") in ("external-id", "commonsMedia", "url") else value
        if kind == "monolingualtext":
            return value["text"] if value["language"] == self.language else ""
        if kind == "time":
            return value["time"].lstrip("+").partition("T")[0].replace("-00", "")
        if kind == "quantity":
            return value["amount"].lstrip("+")
        if kind == "wikibase-entityid":
            return labels.get(value["id"])
        return ""


class _Labels:
    """Entity id -> label, on disk because a full dump has tens of millions."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path)
        self._database.execute("PRAGMA synchronous = OFF")  # the file is temporary
        self._database.execute(
            "CREATE TABLE labels (id TEXT PRIMARY KEY, label TEXT) WITHOUT ROWID"
        )

    def fill(self, labels: Iterator[tuple[str, str]]) -> None:
        with self._database:
            self._database.executemany("INSERT OR REPLACE INTO labels VALUES (?, ?)", labels)

    def get(self, entity_id: str) -> str:
        found = self._database.execute("SELECT label FROM labels WHERE id = ?", (entity_id,))
        row = found.fetchone()
        return row[0] if row else ""
