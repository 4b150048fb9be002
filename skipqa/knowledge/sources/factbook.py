"""The CIA World Factbook: one document for each field of each country.

A country is named by its conventional short form, because the file names are not ISO codes. An id
is `factbook:fr:government:capital`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from skipqa import assets
from skipqa.knowledge.sources.markup import html_to_text
from skipqa.knowledge.sources.source import BadRow, Document

NAMELESS = {"ee": "European Union", "xx": "World"}  # files without a country name
LABEL_GAP = re.compile(r":(?=\S)")


class Factbook:
    name = "factbook"

    def fingerprint(self) -> str:
        return assets.FACTBOOK.key

    def read(self) -> Iterator[Document | BadRow]:
        folder = assets.fetch(assets.FACTBOOK)
        for path in sorted(folder.glob("*/*.json"), key=lambda path: path.stem):
            country = json.loads(path.read_text(encoding="utf-8"))
            name = _name(country, path.stem)
            for section, fields in country.items():
                for field, content in fields.items():
                    if text := _sentences(content):
                        yield Document(
                            id=f"factbook:{path.stem}:{_slug(section)}:{_slug(field)}",
                            title=f"{name}: {section} > {field}",
                            text=text,
                            source="factbook",
                            lead=f"{name}, {field}: ",
                        )


def _name(country: dict[str, Any], code: str) -> str:
    names = country.get("Government", {}).get("Country name", {})
    for form in ("conventional short form", "conventional long form"):
        name = html_to_text(names.get(form, {}).get("text", "none"))
        if name != "none":
            return name.partition(" (sometimes")[0]  # Svalbard's name has a note
    return NAMELESS[code]


def _sentences(content: dict[str, Any]) -> str:
    """`{"text": t}` becomes `t`, any other label `label: t`; parts are joined by semicolons."""
    parts = []
    for label, value in content.items():
        text = html_to_text(value["text"] if isinstance(value, dict) else value)
        text = "; ".join(line.rstrip(";") for line in text.split("\n") if line)
        if text:
            labelled = label not in ("text", "note")
            parts.append(f"{label.strip()}: {text}" if labelled else LABEL_GAP.sub(": ", text))
    return "; ".join(parts)


def _slug(words: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", words.lower()))
