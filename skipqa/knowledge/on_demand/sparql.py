"""A SPARQL endpoint with triples in the shape of Wikidata.

Enters: the address of an endpoint, and names. Leaves: passages made of the direct claims of every
entity that bears a name as label or alias: labels of properties, labels of values or literals. Any
endpoint answers that has `rdfs:label`, `wikibase:directClaim` and `wikibase:propertyType` as
Wikidata has them. All names of a question go into one query.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skipqa.knowledge.coverage import name_key
from skipqa.knowledge.on_demand.http import check_address, fetch_json
from skipqa.knowledge.on_demand.source import Answers, SourceFailed, Told, now
from skipqa.knowledge.triples import Statement, passages
from skipqa.types import Origin, Passage

ACCEPT = "application/sparql-results+json"
MAX_ROWS = 2_000
MAX_THINGS = 2  # that bear one name, those of which most is stated
LANGUAGE = "en"
WHAT_IT_IS = ("instance of", "subclass of")
# What can be said in a sentence: neither identifiers elsewhere nor addresses, pictures, coordinates
KINDS = ("WikibaseItem", "Quantity", "Time", "String", "Monolingualtext")
QUERY = """PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#>
PREFIX schema: <http://schema.org/>
PREFIX skos: <http://www.w3.org/2004/02/skos/core#>
PREFIX wikibase: <http://wikiba.se/ontology#>
SELECT DISTINCT ?name ?thing ?label ?about ?property ?value WHERE {{
  VALUES ?name {{ {names} }}
  VALUES ?kind {{ {kinds} }}
  ?thing rdfs:label|skos:altLabel ?name ; rdfs:label ?label ; ?direct ?object .
  ?claim wikibase:directClaim ?direct ; wikibase:propertyType ?kind ; rdfs:label ?property .
  FILTER(LANG(?label) = "{language}" && LANG(?property) = "{language}")
  OPTIONAL {{ ?thing schema:description ?about FILTER(LANG(?about) = "{language}") }}
  OPTIONAL {{ ?object rdfs:label ?named FILTER(LANG(?named) = "{language}") }}
  BIND(COALESCE(?named, ?object) AS ?value)
}} LIMIT {rows}"""
_DATE = re.compile(r"([+-]?\d+-\d\d-\d\d)T[\d:.]+Z?")
_NUMBER = re.compile(r"\+?(-?\d+)(\.0*)?")


class SparqlSource:
    def __init__(self, url: str, name: str = "") -> None:
        self.url = url
        self.name = name or check_address(url).netloc

    @property
    def identity(self) -> str:
        return f"sparql:{self.url}"

    def ask(self, names: Sequence[str]) -> Answers:
        reply = fetch_json(self.url, {"query": query_for(names)}, ACCEPT)
        asked = now()
        things = _things(reply, self.url)
        told: dict[str, list[Told]] = {}
        for name in names:
            bearing = [one for one in things.values() if name_key(name) in one.called]
            bearing.sort(key=lambda thing: -len(thing.values))
            told[name] = [
                one for thing in bearing[:MAX_THINGS] for one in thing.told(self.name, asked)
            ]
        return told


@dataclass(slots=True)
class _Thing:
    address: str
    label: str
    about: str
    called: set[str] = field(default_factory=set)
    values: dict[str, list[str]] = field(default_factory=dict)  # by property

    def told(self, source: str, asked: str) -> list[Told]:
        # An endpoint has no order: what it is comes first, then by the alphabet.
        ordered = sorted(self.values, key=lambda name: (name not in WHAT_IT_IS, name))
        statements = [Statement(name, tuple(sorted(self.values[name]))) for name in ordered]
        origin = Origin(source, self.address, asked)
        key = re.split(r"[/#]", self.address)[-1]
        texts = passages(self.label, statements, self.about)
        return [
            Told(Passage(f"{source}:{key}:{n}", self.label, text, source), origin)
            for n, text in enumerate(texts, 1)
        ]


def query_for(names: Sequence[str]) -> str:
    """Labels are matched letter by letter, so every name is asked for in the cases in use."""
    written = dict.fromkeys(form for name in names for form in cases(name))
    return QUERY.format(
        names=" ".join(literal(form) for form in written),
        kinds=" ".join(f"wikibase:{kind}" for kind in KINDS),
        language=LANGUAGE,
        rows=MAX_ROWS,
    )


def cases(name: str) -> tuple[str, ...]:
    """As it is, in lower case, with one capital, with capitals throughout."""
    low = name.lower()
    title = re.sub(r"(^|[ -])(\w)", lambda match: match[1] + match[2].upper(), low)
    return tuple(dict.fromkeys((name, low, low[:1].upper() + low[1:], title)))


def literal(text: str) -> str:
    """A string of the language, whatever is in the text. No name has a backslash or a line break,
    which engines read in different ways."""
    plain = " ".join("".join(c if c.isprintable() and c != "\\" else " " for c in text).split())
    escaped = plain.replace('"', '\\"')
    return f'"{escaped}"@{LANGUAGE}'


def _things(reply: Any, url: str) -> dict[str, _Thing]:
    """By address. A row that lacks something is left out."""
    try:
        rows = reply["results"]["bindings"]
        if not isinstance(rows, list):
            raise TypeError
    except (KeyError, TypeError):
        raise SourceFailed(
            f"{check_address(url).netloc} does not answer like a SPARQL endpoint"
        ) from None
    things: dict[str, _Thing] = {}
    for row in rows[:MAX_ROWS]:
        name, address, label, named = (
            _text(row, n) for n in ("name", "thing", "label", "property")
        )
        value = _value(row)
        if not (name and address and label and named and value):
            continue
        thing = things.setdefault(address, _Thing(address, label, _text(row, "about")))
        thing.called.add(name_key(name))
        values = thing.values.setdefault(named, [])
        if value not in values:
            values.append(value)
    return things


def _text(row: Any, name: str) -> str:
    cell = row.get(name) if isinstance(row, Mapping) else None
    value = cell.get("value") if isinstance(cell, Mapping) else None
    return value if isinstance(value, str) else ""


def _value(row: Any) -> str:
    """A label, or a literal in words: a date without its time, a whole number without a point.
    Nothing for a thing without a label and for text in another language."""
    text = _text(row, "value")
    if not text or row["value"].get("type") == "uri":
        return ""
    if row["value"].get("xml:lang", LANGUAGE) != LANGUAGE:
        return ""
    if date := _DATE.fullmatch(text):
        return date[1].lstrip("+")
    number = _NUMBER.fullmatch(text)
    return number[1] if number else text
