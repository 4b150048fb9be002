"""Paraphrases of questions: some to train on, and held-out wordings that are only measured.

Enters: a question of Pocket-KB with its relation and category. Leaves: what it asks for, and that
in the wordings of `paraphrases.json`, where people refer to a thing in many ways and say "it".
The table has two halves that share no wording: "train" and "held_out". Its "fields" are of the
World Factbook, each with the wordings of both halves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from random import Random
from typing import Any

from skipqa.data.pocket_kb.facts import templates

NAME, PRESENCE = "name", "presence"
# What Pocket-KB asks of a country, by the field that states it
RELATIONS_OF = {
    "capital": ("capital",),
    "exchange rates": ("currency",),
    "languages": ("language",),
    "map references": ("part",),
    "internet country code": ("code",),
    "elevation": ("peak",),
    "independence": ("freed_from", "freed_in"),
}
# What a thing is called where its question does not say
PLAIN = {"thing": "object", "grocery": "product"}

OPENINGS = (
    "Tell me, ", "Please tell me: ", "Do you know: ", "I wonder: ", "Hey, ", "Quick question: ",
    "Okay, ", "I would like to know: ", "My child asks: ",
)  # fmt: skip
CLOSINGS = (" please?", " exactly?", " actually?", " do you know?", "", "", "")
# Each is what somebody else would have written.
SPELLINGS = (
    (r"\b(What|Where|Who|How) is\b", r"\1's"),
    (r"\bcolour", "color"),
    (r"\bkilograms\b", "kg"),
    (r"\bcentimetres\b", "cm"),
    (r"\b(do|does|can|would|will|is) not\b", r"\1n't"),
    (r" in the picture\b", " in this image"),
    (r"\b(?:usually|usual|originally) ", ""),
    (r"\bthe ", ""),
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """`known_by` is how a country is known: by its flag, as the origin of a breed."""

    relation: str
    category: str
    known_by: str
    blanks: tuple[tuple[str, str], ...]


@cache
def table() -> dict[str, Any]:
    path = resources.files("skipqa.training.retrieval") / "paraphrases.json"
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def understand(question: str, relation: str, category: str) -> Meaning | None:
    """None where it is no template's but has words of its own."""
    for pattern, known_by in _patterns(relation, category):
        if match := pattern.fullmatch(question):
            return Meaning(relation, category, known_by, tuple(match.groupdict().items()))
    return None


@cache
def _patterns(relation: str, category: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    known = templates()
    if relation == NAME:
        wordings = known["names"].get(category, known["names"]["thing"])
    elif relation == PRESENCE:
        wordings = known["presence"]
    else:
        wordings = known["questions"].get(relation, ())
    spelled = [
        (wording.replace("{country}", phrase), known_by)
        for wording in wordings
        for known_by, phrases in (
            known["countries"] if "{country}" in wording else {"": ("",)}
        ).items()
        for phrase in phrases
    ]
    blank = re.compile(r"\\\{(\w+)\\\}")
    return tuple(
        (re.compile(blank.sub(r"(?P<\1>.+?)", re.escape(text))), known_by)
        for text, known_by in spelled
    )


def wordings(half: str, relation: str, category: str = "") -> Sequence[str]:
    known = table()[half]
    found: Sequence[str]
    if relation == NAME:
        found = known["names"][category]
    elif relation == PRESENCE:
        found = known["presence"]
    else:
        found = known["questions"][relation]
    return found


def references(half: str, meaning: Meaning) -> list[str]:
    """How its country is spoken of or, where none is, its thing."""
    known = table()[half]
    if meaning.known_by:
        return list(known["countries"][meaning.known_by])
    return [*known["things"]["any"], *known["things"].get(meaning.category, ())]


def say(wording: str, meaning: Meaning, half: str, random: Random) -> str:
    """The wording with its blanks filled."""
    if meaning.known_by:
        wording = wording.replace("{country}", random.choice(references(half, meaning)))
    thing = random.choice(references(half, replace(meaning, known_by="")))
    noun = PLAIN.get(meaning.category, meaning.category)
    blanks = {"noun": noun, **dict(meaning.blanks)}
    text = wording.replace("{it}", thing).format(**blanks)
    return text[0].upper() + text[1:]


def train_wording(question: str, relation: str, category: str, random: Random) -> str:
    """A random paraphrase to train on, where there is any, as loosely written as people write."""
    if (meaning := understand(question, relation, category)) is not None:
        wording = random.choice(wordings("train", relation, category))
        question = say(wording, meaning, "train", random)
    return edited(question, random)


def held_out_wordings(question: str, relation: str, category: str) -> list[str]:
    """All paraphrases that nothing is trained on."""
    if (meaning := understand(question, relation, category)) is None:
        return [other for own, other in table()["held_out"]["own words"].items() if own == question]
    random = Random(repr(meaning))
    known = wordings("held_out", relation, category)
    return [say(wording, meaning, "held_out", random) for wording in known]


def of_field(half: str, field: str) -> list[str]:
    """How the World Factbook's field is asked for, with a blank for the country."""
    train, held_out = table()["fields"].get(field, ((), ()))
    found = [*(train if half == "train" else held_out)]
    for relation in RELATIONS_OF.get(field, ()):
        found += wordings(half, relation)
    return found


def edited(text: str, random: Random) -> str:
    for pattern, other in SPELLINGS:
        if random.random() < 0.2:
            text = re.sub(pattern, other, text)
    if random.random() < 0.15:
        text = random.choice(OPENINGS) + text[0].lower() + text[1:]
    if text.endswith("?") and random.random() < 0.2:
        text = text[:-1] + random.choice(CLOSINGS)
    return text
