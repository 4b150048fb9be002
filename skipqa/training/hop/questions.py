"""Questions of two steps and of one, as text: which words stand for a bridge, and what names it.

Enters: Pocket-KB's training questions, OK-VQA's, and the paraphrases. Leaves: `Asked`, questions
with the words that stand for a bridge where there are any, and `TwoStep`, what such words ask for
of a thing and what is right. A fact that Pocket-KB asks for directly ("which country does this
breed come from?") is the first step of a question that is made here, about any field of the World
Factbook for a country, about what is known of it for a family of plants or a group of dogs. A tenth
of the entities is held out, and so are the wordings that paraphrases hold out; unseen entities are
left out. No photo is opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from skipqa.data.held_out import is_held_out, is_id_held_out, photos_of_val, unseen_entities
from skipqa.data.pocket_kb.facts import templates
from skipqa.data.pocket_kb.references import NOUNS
from skipqa.files import Fields, check_rows, read_jsonl
from skipqa.training.retrieval import paraphrases
from skipqa.training.retrieval.about import TRAIN
from skipqa.training.retrieval.spans import OKVQA, POCKET_KB, Spanned, crowded_references, find

# How the first step is spoken of, and what is asked about its answer, where that is no country
PHRASES = {
    "family": ("the plant family of {it}", "the family that {it} belongs to"),
    "genus": ("the genus of {it}", "the genus that {it} belongs to"),
    "group": ("the kennel club group of {it}", "the group that {it} is shown in"),
}
ABOUT_GROUP = (
    "What else belongs to {country}?", "How is {country} described?",
    "What is known about {country}?", "What is typical of {country}?",
)  # fmt: skip
COUNTRIES = ("origin", "native", "raised", "brand")
FLAG = "flag"
HALVES = ("train", "held_out")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TwoStep:
    """What the words ask for of an entity, and the names that are right."""

    phrase: str
    entity: str
    name: str  # of the entity
    names: tuple[str, ...]  # of the bridge, in plain form
    gold: tuple[str, ...]  # passages that state it
    held_out: bool


def read_rows(pocket_kb: Path) -> list[dict[str, Any]]:
    """Pocket-KB's training questions, but those about unseen entities."""
    path, unseen = pocket_kb / TRAIN, unseen_entities(pocket_kb)
    fields: Fields = {
        **dict.fromkeys(("question", "entity", "name", "category", "relation"), str),
        "answers": dict,
        "gold": list,
    }
    rows = check_rows(str(path), read_jsonl(path), fields)
    return [row for row in rows if row["entity"] not in unseen]


def asked_in_two_steps(
    rows: Sequence[Mapping[str, Any]], seed: int, made: int
) -> list[tuple[Spanned, TwoStep]]:
    """Pocket-KB's own, and `made` from each first step."""
    found: list[tuple[Spanned, TwoStep]] = []
    for row in rows:
        held_out = is_id_held_out(row["entity"])
        if row.get("bridge"):
            if place := _nested_in(row):
                question = Spanned(row["question"], place, POCKET_KB, held_out)
                phrase = row["question"][slice(*place)]
                found.append((question, _step(row, phrase, (row["bridge"],), row["hops"][0])))
        elif row["relation"] in (*COUNTRIES, *PHRASES):
            random = Random(f"{seed} {row['question_id']}")
            for _ in range(made):
                text, phrase = _made(row, HALVES[held_out], random)
                question = Spanned(text, find(phrase, text), POCKET_KB, held_out)
                found.append((question, _step(row, phrase, tuple(row["answers"]), row["gold"])))
    return found


def some(items: Iterable[T], most: int) -> list[T]:
    """Each once, and at most so many, evenly spread."""
    different = list(dict.fromkeys(items))
    return different[:: max(1, len(different) // most)][:most]


def asked_in_one_step(rows: Sequence[Mapping[str, Any]]) -> Iterator[Spanned]:
    """As they are. A question that is asked of several entities is not held out."""
    own = [row for row in rows if not row.get("bridge")]
    known = {row["question"] for row in own if not is_id_held_out(row["entity"])}
    for text in dict.fromkeys(row["question"] for row in own):
        yield Spanned(text, None, POCKET_KB, text not in known)


def reworded_in_one_step(
    rows: Sequence[Mapping[str, Any]], seed: int, made: int
) -> Iterator[Spanned]:
    """In other words; of a flag also what else the World Factbook says."""
    for row in rows:
        if row.get("bridge"):
            continue
        held_out, random = is_id_held_out(row["entity"]), Random(f"{seed} {row['question_id']}")
        relation, category = row["relation"], row["category"]
        if not held_out:
            reworded = paraphrases.train_wording(row["question"], relation, category, random)
            yield Spanned(reworded, None, POCKET_KB, held_out)
        if category == "country":
            for _ in range(made):
                text, _ = _filled(_of_country(HALVES[held_out], random), row, FLAG, random)
                yield Spanned(text, None, POCKET_KB, held_out)


def from_okvqa(folder: Path, pocket_kb: Path) -> Iterator[Spanned]:
    """People's own questions: they are asked in one step."""
    path, left_out = folder / TRAIN, photos_of_val(pocket_kb)["coco"]
    if not path.is_file():
        return
    for row in check_rows(str(path), read_jsonl(path), {"image": str, "question": str}):
        if row["image"] not in left_out:
            yield Spanned(row["question"], None, OKVQA, is_held_out(row["image"]))


def _step(
    row: Mapping[str, Any], phrase: str, names: tuple[str, ...], gold: Sequence[str]
) -> TwoStep:
    held_out = is_id_held_out(row["entity"])
    return TwoStep(phrase, row["entity"], row["name"], names, tuple(gold), held_out)


def _made(row: Mapping[str, Any], half: str, random: Random) -> tuple[str, str]:
    """A question of two steps, and the words in it that stand for the bridge."""
    relation = row["relation"]
    wording = _of_country(half, random) if relation in COUNTRIES else random.choice(ABOUT_GROUP)
    return _filled(wording, row, relation, random, half)


def _of_country(half: str, random: Random) -> str:
    fields = [*paraphrases.table()["fields"], *paraphrases.RELATIONS_OF]
    return random.choice(paraphrases.of_field(half, random.choice(fields)))


def _filled(
    wording: str, row: Mapping[str, Any], relation: str, random: Random, half: str = "train"
) -> tuple[str, str]:
    known, category = paraphrases.table()[half], row["category"]
    phrase = random.choice([*PHRASES.get(relation, ()), *known["countries"].get(relation, ())])
    things = [*known["things"]["any"], *known["things"].get(category, ())]
    noun, _ = NOUNS.get(category, (paraphrases.PLAIN.get(category, category), ""))
    if half == "train":
        things += crowded_references(category)
    phrase = phrase.replace("{it}", random.choice(things)).format(noun=noun)
    text = wording.format(country=phrase)
    return text[0].upper() + text[1:], phrase


def _nested_in(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """The longest of Pocket-KB's phrases for a country that its question has."""
    found = (match.span() for one in _phrases() if (match := one.search(row["question"])))
    return max(found, key=lambda place: place[1] - place[0], default=None)


@cache
def _phrases() -> tuple[re.Pattern[str], ...]:
    known = templates()
    alone = [one for kind in COUNTRIES for one in known["countries"][kind]]
    crowded = known["crowded"]["countries"]
    alone += [one for kind in COUNTRIES for one in crowded[kind]["train"]]
    return tuple(
        re.compile(re.sub(r"\\\{\w+\\\}", ".+?", re.escape(one)) + r"(?= have\b|[?.]|$)")
        for one in alone
    )
