"""What is asked about: entities, and facts with the passages that state them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from random import Random
from typing import Any

from skipqa.data.pocket_kb.text import accepted

NAME = "name"  # the relation of questions that ask what something is called


@dataclass(frozen=True, slots=True)
class Fact:
    """`hops` are passage ids, a tuple for each step: the last step states the answer, the steps
    before it state `bridge`, what the next step is about."""

    relation: str
    answers: tuple[str, ...]  # plain, the preferred first
    hops: tuple[tuple[str, ...], ...]
    question: str = ""  # where it is asked in words of its own
    bridge: str = ""
    blanks: tuple[tuple[str, str], ...] = ()  # of the question's template

    @property
    def gold(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(id for hop in self.hops for id in hop))


@dataclass(frozen=True, slots=True)
class Entity:
    key: str  # "dog:vizsla"
    category: str  # dog, cat, flower, grocery, country, imagenet
    noun: str
    names: tuple[str, ...]  # as people write them, the usual first
    facts: tuple[Fact, ...]

    @property
    def called(self) -> tuple[str, ...]:
        """What it may be called, in the form that is scored; "dog" is not enough for a dog."""
        return accepted(name for name in self.names if name != self.noun)

    def answers(self, relation: str) -> frozenset[str]:
        """All that would be right if the relation were asked of it."""
        if relation == NAME:
            return frozenset(self.called)
        return frozenset(a for f in self.facts if f.relation == relation for a in f.answers)


@cache
def templates() -> dict[str, Any]:
    path = resources.files("skipqa.data.pocket_kb") / "templates.json"
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def table(name: str) -> list[dict[str, str]]:
    """The rows of one of the package's .tsv files."""
    text = (resources.files("skipqa.data.pocket_kb") / name).read_text(encoding="utf-8")
    header, *lines = (line.split("\t") for line in text.splitlines())
    return [dict(zip(header, line, strict=True)) for line in lines]


def ask(fact: Fact, noun: str, random: Random) -> str:
    """The fact as a question, in one of its wordings."""
    if fact.question:
        return fact.question
    wording: str = random.choice(templates()["questions"][fact.relation])
    blanks = {"noun": noun, **dict(fact.blanks)}
    if "country" in blanks:
        blanks["country"] = random.choice(templates()["countries"][blanks["country"]])
        blanks["country"] = blanks["country"].format(noun=noun)
    return wording.format(**blanks)
