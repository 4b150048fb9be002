"""JSON as language models write it: every object and list in a text, as far as it can be read.

Enters: any text. Leaves: the objects and lists in it, in order. Code fences and prose around them,
trailing commas, single or curly quotes, names without quotes and Python's literals are all read; a
value that breaks off or makes no sense ends there, with what it held so far, and reading goes on
behind it. Nothing raises, and the time is linear in the text. It does not know what is asked for.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

DEEPEST = 16  # levels of nesting; what is asked for has four
LONGEST = 200_000  # characters; replies are limited to some thousand tokens
_START = re.compile(r"[{\[]")
_SPACE = re.compile(r"[\s,;]*")  # a comma too many is none
_CLOSING = {'"': '"', "'": "'", "“": "”", "‘": "’"}
_STRINGS = {
    opening: re.compile(rf"([^\\{closing}]*(?:\\.[^\\{closing}]*)*)(?:{closing}|\\?\Z)", re.DOTALL)
    for opening, closing in _CLOSING.items()
}
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?%?")
_WORD = re.compile(r"[^\W\d][\w-]*")
_COLON = re.compile(r"\s*[:=]\s*")
_LITERALS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None}


def values(text: str) -> list[dict[str, Any] | list[Any]]:
    """Every outermost object and list. Numbers are floats; a percentage is a fraction."""
    reader, found = _Reader(text[:LONGEST]), []
    while reader.seek():
        found.append(reader.container(1))
    return found


class _Broken(Exception):
    """Nothing that could be a value."""


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def seek(self) -> bool:
        """To the next object or list, if there is one."""
        found = _START.search(self.text, self.at)
        self.at = len(self.text) if found is None else found.start()
        return found is not None

    def container(self, depth: int) -> dict[str, Any] | list[Any]:
        opening = self.text[self.at]
        self.at += 1
        filled: dict[str, Any] | list[Any]
        filled, closing = ({}, "}") if opening == "{" else ([], "]")
        try:
            while not self._ends(closing):
                if isinstance(filled, list):
                    filled.append(self._value(depth))
                else:
                    name = self._name()
                    filled[name] = self._value(depth, words=True)
        except _Broken:
            pass  # as if it had ended here
        return filled

    def _ends(self, closing: str) -> bool:
        self.at = _matched(_SPACE, self.text, self.at).end()
        if self.at >= len(self.text):
            return True
        if self.text[self.at] == closing:
            self.at += 1
            return True
        return self.text[self.at] in "}]"  # of something outside: this one was not closed

    def _name(self) -> str:
        if self.text[self.at] in _CLOSING:
            name = self._string()
        elif (word := _WORD.match(self.text, self.at)) or (
            word := _NUMBER.match(self.text, self.at)
        ):
            name, self.at = word[0], word.end()
        else:
            raise _Broken
        colon = _COLON.match(self.text, self.at)
        if colon is None:
            raise _Broken
        self.at = colon.end()
        return name

    def _value(self, depth: int, *, words: bool = False) -> Any:
        """With `words`, one without quotes is a string; in a list it is prose in brackets."""
        if self.at >= len(self.text):
            raise _Broken
        first = self.text[self.at]
        if first in "{[":
            if depth == DEEPEST:
                raise _Broken
            return self.container(depth + 1)
        if first in _CLOSING:
            return self._string()
        if number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            return _float(number[0])
        word = _WORD.match(self.text, self.at)
        if word and (words or word[0].lower() in _LITERALS):
            self.at = word.end()
            return _LITERALS.get(word[0].lower(), word[0])
        raise _Broken

    def _string(self) -> str:
        found = _matched(_STRINGS[self.text[self.at]], self.text, self.at + 1)
        self.at = found.end()
        return _unescaped(found[1])


def _matched(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    """Of a pattern that matches everywhere."""
    found = pattern.match(text, at)
    assert found is not None
    return found


def _unescaped(body: str) -> str:
    if "\\" not in body:
        return body
    try:
        return str(json.loads(f'"{body}"', strict=False))
    except ValueError:
        return re.sub(r"\\(.)", r"\1", body, flags=re.DOTALL)


def _float(written: str) -> float | None:
    """None where it is beyond what a float holds."""
    number = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    return number if math.isfinite(number) else None
