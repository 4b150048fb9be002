"""Pictures that show several things, and two questions about each: a plan drawn by chance.

Enters: photos, entities with facts, COCO photos without any of the kinds. Leaves: drafts in a fixed
order, two for each picture. A question says which thing it is about by its kind, place, size or
the colour of its card. All photos of a picture are on one side of what training holds out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from skipqa.data.crowds import CARDS, Shape, arrange
from skipqa.data.pocket_kb.asking import Asked, questions
from skipqa.data.pocket_kb.casting import KINDS, LEAST, Casting
from skipqa.data.pocket_kb.crowd import Crowd, CrowdedDraft, Thing
from skipqa.data.pocket_kb.draft import Draft
from skipqa.data.pocket_kb.facts import NAME
from skipqa.data.pocket_kb.material import Material
from skipqa.data.pocket_kb.references import AskedBy, Reference, references

PICTURES = {"train": 2000, "val": 500}
MOST_THINGS = 6
MOST_ALIKE = 4
WAYS: dict[AskedBy, float] = {"kind": 0.25, "place": 0.35, "size": 0.2, "colour": 0.2}
SAME_GROUP = 0.6  # of the pictures whose two questions both need more than a kind
CARDS_ANYWAY = 0.25  # of the pictures that no colour is asked of: cards give nothing away
SIDES = {"train": 0.9, "fresh": 0.05, "held-out": 0.05}  # of the pictures to train on
CASTS, LAYOUTS = 300, 20  # tried for a picture


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
    shapes = [Shape(casting.aspect(photo), LEAST[entity.category]) for entity, photo in cast]
    for _ in range(LAYOUTS):
        places = arrange(shapes, on_cards, random)
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
    asked = list(questions(crowd, chosen, casting.corpus, random))
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
