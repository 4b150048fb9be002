"""An HTTP API that answers in JSON: a template of its address, and the fields to read.

Enters: `URL#FIELDS`, and names. `{name}` in the URL stands for the name that is asked for, and
`$VARIABLE` for a variable of the environment, such as a key. The fields are where, in a reply,
something is found, as `items=search&label=label&text=description`:

    items   the list of things that were found; without it the reply is one thing
    label   what a thing is called; without it the name that was asked for
    text    sentences about it
    facts   an object of properties: {"country": "Hungary", "colours": ["gold", "rust"]}
    id      its identifier or address, for provenance

A path goes down through objects and lists, as in `query.pages.0.extract`. Leaves: passages of
things that bear the name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote

from skipqa.errors import UserError, choices
from skipqa.knowledge.coverage import name_key
from skipqa.knowledge.on_demand.http import check_address, fetch_json
from skipqa.knowledge.on_demand.source import Answers, Told, now
from skipqa.knowledge.triples import Statement, passages
from skipqa.types import Origin, Passage

FIELDS = ("items", "label", "text", "facts", "id")
MAX_THINGS = 2  # that bear one name
MAX_TEXT = 1_200  # characters
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


class JsonSource:
    def __init__(self, spec: str) -> None:
        self.spec = spec
        template, _, fields = spec.partition("#")
        self.name = check_address(template).netloc
        if "{name}" not in template:
            raise UserError(f"the address of {self.name} has no {{name}}: where does it go?")
        self.paths = dict(parse_qsl(fields))
        for field in self.paths:
            if field not in FIELDS:
                raise UserError(
                    f"{self.name}: no field {field!r}; there is {choices(field, FIELDS)}"
                )
        if not self.paths.keys() & {"text", "facts"}:
            raise UserError(f"{self.name}: say after # where its text= or its facts= are")
        self.template = _VARIABLE.sub(lambda match: _environment(match[1]), template)

    @property
    def identity(self) -> str:
        return f"json:{self.spec}"

    def ask(self, names: Sequence[str]) -> Answers:
        return {name: self._ask(name) for name in names}

    def _ask(self, name: str) -> list[Told]:
        address = self.template.replace("{name}", quote(name, safe=""))
        reply = fetch_json(address)
        asked = now()
        items = at(reply, self.paths["items"]) if "items" in self.paths else [reply]
        told: list[Told] = []
        things = 0
        for number, item in enumerate(items if isinstance(items, list) else ()):
            label = self._text(item, "label") or ("" if "label" in self.paths else name)
            if name_key(label) != name_key(name) or things == MAX_THINGS:
                continue
            texts = passages(label, self._statements(item), self._text(item, "text"))
            key = self._text(item, "id") or str(number)
            origin = Origin(self.name, key if key.startswith("http") else self.name, asked)
            told += [
                Told(Passage(f"{self.name}:{key}:{n}", label, text, self.name), origin)
                for n, text in enumerate(texts, 1)
            ]
            things += bool(texts)
        return told

    def _text(self, item: Any, field: str) -> str:
        found = at(item, self.paths[field]) if field in self.paths else None
        return found[:MAX_TEXT] if isinstance(found, str) else ""

    def _statements(self, item: Any) -> list[Statement]:
        found = at(item, self.paths["facts"]) if "facts" in self.paths else None
        if not isinstance(found, Mapping):
            return []
        return [
            Statement(str(name), tuple(plain for one in _listed(value) if (plain := _plain(one))))
            for name, value in found.items()
        ]


def at(value: Any, path: str) -> Any:
    """What lies at a path, None where nothing does."""
    for step in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _plain(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if isinstance(value, str) else str(value) if number else ""


def _environment(name: str) -> str:
    if not (value := os.environ.get(name, "")):
        raise UserError(f"the address of a source names ${name}, which is not set")
    return quote(value, safe="")
