"""Triples as sentences: what a knowledge base says of a thing, to be searched and read.

Enters: the label of a thing and statements about it, a property with its values. Leaves: one
sentence per statement, or short passages of such sentences, each of which names the thing. Dumps
(`sources/wikidata.py`) and sources that are asked on demand (`on_demand/`) share it. It does not
know where the statements are from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

PASSAGE_WORDS = 40  # as much as is read of a longer passage (`RetrieveConfig.excerpt_words`)
MAX_VALUES = 8  # of one statement: a country has thousands of twinned towns
MAX_CHARACTERS = 300  # of one value
# A property whose name begins like this says what the thing is: "named after", "part of"
ABOUT_THE_THING = ("part", "made", "found", "native", "known")


@dataclass(frozen=True, slots=True)
class Statement:
    property: str  # its label, "country of origin"
    values: tuple[str, ...]  # labels and literals


def sentence(label: str, statement: Statement, *, named: bool = True) -> str:
    """`named`: the thing by its label, else by a pronoun. Empty where nothing is stated."""
    values = [one for value in statement.values[:MAX_VALUES] if (one := _clean(value))]
    name, label = _clean(statement.property), _clean(label)
    if not values or not name or not label:
        return ""
    who = label if named else "It"
    first, _, rest = name.partition(" ")
    if name == "instance of":
        return f"{who} is {_listed([_with_article(value) for value in values])}."
    if name == "subclass of":
        return f"{who} is a kind of {_listed(values)}."
    if first == "has" and rest:
        return f"{who} {name} {_listed(values)}."
    if rest and (first in ABOUT_THE_THING or first.endswith("ed")):
        return f"{who} is {name} {_listed(values)}."
    whose = f"The {name} of {label}" if named else f"Its {name}"
    return f"{whose} is {_listed(values)}."


def sentences(
    label: str, statements: Iterable[Statement], description: str = "", aliases: Sequence[str] = ()
) -> Iterator[str]:
    """All that is said of a thing, the first sentence with its label."""
    told = [f"{_clean(label)}: {text}."] if (text := _clean(description).rstrip(".")) else []
    if names := [name for alias in aliases if (name := _clean(alias))]:
        who = "It is" if told else f"{_clean(label)} is"
        told.append(f"{who} also called {_listed(names[:MAX_VALUES])}.")
    yield from told
    first = not told
    for statement in statements:
        if said := sentence(label, statement, named=first):
            yield said
            first = False


def passages(
    label: str, statements: Iterable[Statement], description: str = "", aliases: Sequence[str] = ()
) -> list[str]:
    """The same in passages of at most `PASSAGE_WORDS`, longer only for one long sentence. Each
    states something by the thing's label."""
    parts: list[list[str]] = []
    heads = list(sentences(label, (), description, aliases))
    if heads:
        parts.append(heads)
    for statement in statements:
        following = sentence(label, statement, named=False)
        if parts and following and _words([*parts[-1], following]) <= PASSAGE_WORDS:
            parts[-1].append(following)
        elif following:
            parts.append([sentence(label, statement)])
    return [" ".join(part) for part in parts]


def _words(texts: Sequence[str]) -> int:
    return sum(len(text.split()) for text in texts)


def _clean(text: str) -> str:
    return " ".join(text.split())[:MAX_CHARACTERS].rstrip()


def _with_article(name: str) -> str:
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _listed(values: Sequence[str]) -> str:
    *before, last = values
    return f"{', '.join(before)} and {last}" if before else last
