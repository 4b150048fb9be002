"""Pictures that show several things, and questions about two of them: which pictures, which words.

Enters: photos, entities with facts, COCO photos without any of the kinds. Leaves: drafts in a fixed
order, two for each picture. A question says which thing it is about by its kind, place, size or
the colour of its card, and its answer is wrong for every other thing of the same kind. All photos
of a picture are on one side of what training holds out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from skipqa.data.crowds import CARDS, SIDE, Rectangle, arrange, compose_crowd
from skipqa.data.pocket_kb.casting import KINDS, Casting
from skipqa.data.pocket_kb.draft import Draft
from skipqa.data.pocket_kb.facts import NAME, Entity, Fact, templates
from skipqa.data.pocket_kb.material import Material
from skipqa.data.pocket_kb.pictures import Sources
from skipqa.data.pocket_kb.references import AskedBy, Reference, Shown, references
from skipqa.data.pocket_kb.sample import draw_fact
from skipqa.data.scenes import Placement, to_webp

PICTURES = {"train": 2000, "val": 500}
MOST_THINGS = 6
MOST_ALIKE = 4
WAYS: dict[AskedBy, float] = {"kind": 0.25, "place": 0.35, "size": 0.2, "colour": 0.2}
SAME_GROUP = 0.6  # of the pictures whose two questions both need more than a kind
SAME_RELATION = 0.5  # of the questions about two things of a kind: only the reference differs
CARDS_ANYWAY = 0.25  # of the pictures that no colour is asked of: cards give nothing away
NEW_WORDINGS = 0.5  # of the questions of `val`
SIDES = {"train": 0.9, "fresh": 0.05, "held-out": 0.05}  # of the pictures to train on
CASTS, LAYOUTS = 300, 20  # tried for a picture
# In questions that have words of their own: what stands for the thing
NAMED = re.compile(
    r"\bthis (?:apple|drink|fruit|juice|melon|milk|mushroom|pear|potato|product|spice|tomato|"
    r"vegetable|yoghurt)\b"
)


@dataclass(frozen=True, slots=True)
class Thing:
    entity: Entity
    photo: str  # "entities/…" or "flags/…"
    place: Rectangle
    card: str | None

    @property
    def shown(self) -> Shown:
        """By its rounded box, as a row has it, so that whoever reads it comes to the same words."""
        box = Placement(*self.place.box.rounded())
        return Shown(self.entity.category, box, self.card)

    def row(self) -> dict[str, Any]:
        return {
            "entity": self.entity.key,
            "name": self.entity.names[0],
            "kind": self.entity.category,
            "box": self.place.box.rounded(),
            "size": round(self.place.longer / SIDE, 4),
            "card": self.card,
            "photo": self.photo,
        }


@dataclass(frozen=True, slots=True)
class Crowd:
    """A picture of several things."""

    split: str
    number: int
    background: str
    things: tuple[Thing, ...]

    @property
    def image(self) -> str:
        return f"crowded/{self.split}-{self.number:04d}.webp"

    def alike(self, asked: int) -> list[Entity]:
        """The other things of the same kind."""
        kind = self.things[asked].entity.category
        others = [thing.entity for place, thing in enumerate(self.things) if place != asked]
        return [other for other in others if other.category == kind]

    def compose(self, sources: Sources) -> bytes:
        things = ((sources.image(one.photo), one.place, one.card) for one in self.things)
        return to_webp(compose_crowd(sources.image(self.background), things))


@dataclass(frozen=True, slots=True)
class CrowdedDraft:
    """A question about one thing of a crowd."""

    draft: Draft
    crowd: Crowd
    asked: int
    asked_by: AskedBy
    new_wording: bool  # no question of `train` is worded like it

    def render(self, sources: Sources, seed: int) -> tuple[dict[str, Any], Callable[[], bytes]]:
        crowd, thing = self.crowd, self.crowd.things[self.asked]
        row = self.draft.row(crowd.image, thing.place.box.rounded())
        row["subset"] = ["crowded", *row["subset"]]
        row |= {
            "things": [one.row() for one in crowd.things],
            "asked_by": self.asked_by,
            "distractors": len(crowd.alike(self.asked)),
            "new_wording": self.new_wording,
        }
        return row, lambda: crowd.compose(sources)


def plan_crowded(
    material: Material,
    casting: Casting,
    pictures: Mapping[str, int],
    last: Mapping[str, int],
) -> Iterator[CrowdedDraft]:
    """Two drafts for each picture that could be drawn; their numbers follow `last`."""
    for split, count in pictures.items():
        number_of_question = last[split]
        for number in range(1, count + 1):
            random = material.random(f"crowded:{split}:{number}")
            ways = random.choices(list(WAYS), list(WAYS.values()), k=2)
            side = "val"
            if split == "train":
                (side,) = random.choices(list(SIDES), list(SIDES.values()))
            drawn = (_draw(number, side, ways, casting, random) for _ in range(CASTS))
            crowd, asked = next(filter(None, drawn), (None, ()))
            if crowd is None:
                continue
            for one in asked:
                number_of_question += 1
                yield _draft(one, crowd, number_of_question, material)


@dataclass(frozen=True, slots=True)
class Asked:
    thing: int
    by: AskedBy
    question: str
    fact: Fact | None  # None: its name is asked for
    new_wording: bool


def _draft(asked: Asked, crowd: Crowd, number: int, material: Material) -> CrowdedDraft:
    thing = crowd.things[asked.thing]
    entity, fact = thing.entity, asked.fact
    draft = Draft(
        split=crowd.split,
        number=number,
        question=asked.question,
        answers=fact.answers if fact else entity.called,
        fact=fact,
        relation=fact.relation if fact else NAME,
        photo=thing.photo,
        background=crowd.background,
        fraction=None,
        **material.about(entity),
    )
    return CrowdedDraft(draft, crowd, asked.thing, asked.by, asked.new_wording)


def _draw(
    number: int, side: str, ways: Sequence[AskedBy], casting: Casting, random: Random
) -> tuple[Crowd, list[Asked]] | None:
    """A picture and its questions; None where chance went wrong."""
    groups = _groups(ways, casting.kinds(side), random)
    if groups is None:
        return None
    counts, kinds = groups
    cast = casting.draw(side, counts, random)
    random.shuffle(cast)
    on_cards = "colour" in ways or random.random() < CARDS_ANYWAY
    cards = random.sample(list(CARDS), len(cast)) if on_cards else [None] * len(cast)
    for _ in range(LAYOUTS):
        places = arrange([casting.aspect(photo) for _, photo in cast], on_cards, random)
        if places is None:
            continue
        things = tuple(
            Thing(entity, photo, place, card)
            for (entity, photo), place, card in zip(cast, places, cards, strict=True)
        )
        chosen = _choose(things, ways, kinds, random)
        if chosen is not None:
            break
    else:
        return None
    ground = casting.background(side, random)
    if ground is None:
        return None
    crowd = Crowd("val" if side == "val" else "train", number, ground, things)
    asked = list(_questions(crowd, chosen, random))
    return (crowd, asked) if len(asked) == len(ways) else None


def _groups(
    ways: Sequence[AskedBy], known: Sequence[str], random: Random
) -> tuple[dict[str, int], list[str]] | None:
    """How many things of each kind, and the kinds of the two that are asked about."""
    kinds = sorted(known, key=lambda kind: -(random.random() ** (1 / KINDS[kind])))
    counts: dict[str, int] = {}
    asked: list[str] = []
    for way in ways:
        if way != "kind" and asked and counts[asked[0]] > 1 and random.random() < SAME_GROUP:
            asked.append(asked[0])
            continue
        if not kinds:
            return None
        kind = kinds.pop(0)
        counts[kind] = 1 if way == "kind" else random.choice((2, 2, 3))
        asked.append(kind)
    single = {kind for kind, way in zip(asked, ways, strict=True) if way == "kind"}
    total = random.randint(max(2, sum(counts.values())), MOST_THINGS)
    while sum(counts.values()) < total:
        open_kinds = [k for k in (*counts, *kinds) if k not in single]
        open_kinds = [k for k in open_kinds if counts.get(k, 0) < MOST_ALIKE]
        if not open_kinds:
            break
        kind = random.choice(open_kinds)
        counts[kind] = counts.get(kind, 0) + 1
    return counts, asked


def _choose(
    things: Sequence[Thing], ways: Sequence[AskedBy], kinds: Sequence[str], random: Random
) -> list[tuple[int, Reference]] | None:
    """For each question a thing of its kind that can be referred to in its way."""
    shown = [thing.shown for thing in things]
    chosen: list[tuple[int, Reference]] = []
    for way, kind in zip(ways, kinds, strict=True):
        taken = {place for place, _ in chosen}
        known = [
            (place, reference)
            for place, one in enumerate(shown)
            if one.kind == kind and place not in taken
            for reference in references(shown, place)
            if reference.by == way
        ]
        if not known:
            return None
        chosen.append(random.choice(known))
    return chosen


def _questions(
    crowd: Crowd, chosen: Sequence[tuple[int, Reference]], random: Random
) -> Iterator[Asked]:
    """Fewer than were chosen where a thing has no fact that sets it apart."""
    before: tuple[str, str] | None = None  # kind and relation of the question before
    for place, reference in chosen:
        entity, alike = crowd.things[place].entity, crowd.alike(place)
        facts = _telling(entity, alike)
        if before is not None and before[0] == entity.category and random.random() < SAME_RELATION:
            facts = [fact for fact in facts if fact.relation == before[1]] or facts
        fact = draw_fact(facts, random)
        if not facts or (fact is None and not _differs(entity, NAME, alike)):
            return
        before = (entity.category, fact.relation if fact else NAME)
        half = "val" if crowd.split == "val" and random.random() < NEW_WORDINGS else "train"
        phrase = reference.phrase(entity.category, half, random)
        question = _ask(entity, fact, phrase, half, random)
        yield Asked(place, reference.by, question, fact, half == "val")


def _telling(entity: Entity, alike: Sequence[Entity]) -> list[Fact]:
    """Facts that no other shares; those that can be asked of all of them where there are any."""
    askable = [fact for fact in entity.facts if not fact.question or NAMED.search(fact.question)]
    facts = [
        fact
        for fact in askable
        if all(other.answers(fact.relation).isdisjoint(fact.answers) for other in alike)
    ]
    of_all = [fact for fact in facts if all(other.answers(fact.relation) for other in alike)]
    return of_all or facts


def _differs(entity: Entity, relation: str, alike: Sequence[Entity]) -> bool:
    answers = entity.answers(relation)
    return all(other.answers(relation).isdisjoint(answers) for other in alike)


def _ask(entity: Entity, fact: Fact | None, thing: str, half: str, random: Random) -> str:
    known = templates()["crowded"]
    if fact is None:
        wordings = known["questions"][NAME][entity.category]
    elif fact.question:
        return NAMED.sub(thing, fact.question)
    else:
        wordings = known["questions"][fact.relation]
    wording: str = random.choice(wordings[half])
    blanks = dict(fact.blanks) if fact else {}
    if "country" in blanks:
        wording = wording.replace(
            "{country}", random.choice(known["countries"][blanks["country"]][half])
        )
    return wording.format(thing=thing)
