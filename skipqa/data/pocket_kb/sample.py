"""Which questions are asked about one thing each: a plan drawn by chance, the same for a seed.

Enters: photos, COCO labels, entities with facts. Leaves: drafts in a fixed order, each of which
renders itself into a row and its picture, and the photos of the gallery.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from skipqa.data.pocket_kb.countries import Country
from skipqa.data.pocket_kb.draft import LARGE_AREA, SMALL_AREA, Draft, Photo
from skipqa.data.pocket_kb.facts import NAME, Entity, Fact, ask, templates
from skipqa.data.pocket_kb.gallery import choose_gallery
from skipqa.data.pocket_kb.material import IMAGENET, RIVALS, Backgrounds, Material
from skipqa.data.pocket_kb.text import accepted

PERCEPTUAL, MULTIHOP, SMALL = 0.15, 0.25, 0.35  # fractions of a photo's questions
VAL_OF_CLASSES = 0.3  # ImageNet photos have one split in the data: this part of them is held out
PHOTOS_AN_ENTITY = {"train": 17, "val": 6}
QUESTIONS_A_PHOTO = {"cat": 2, "animal": 2, "thing": 2}
SCENES_A_COUNTRY = {"train": 8, "val": 2}
PRESENCE = {"train": 700, "val": 200}


def plan(material: Material, grounds: Backgrounds) -> tuple[list[Draft], dict[str, str]]:
    """Questions about one thing each; and the gallery, a photo of each entity that none of them
    uses.

    What is drawn for all entities is numbered before anything is left out, so that a row and its
    picture do not depend on which entities are unseen.
    """
    drawn = [
        *_of_photos(material, grounds),
        *_of_flags(material, grounds),
        *_of_scenes(material, grounds),
    ]
    material.random("order").shuffle(drawn)
    last = dict.fromkeys(("train", "val"), 0)
    drafts = _numbered(drawn, last)
    gallery = choose_gallery(material, {draft.photo for draft in drafts})
    kept = [
        draft
        for draft in drafts
        if draft.photo not in gallery.values() and not (draft.split == "train" and draft.unseen)
    ]
    lost = Counter(draft.category for draft in drafts) - Counter(draft.category for draft in kept)
    more = [
        *_more_of_photos(material, grounds, kept, lost, frozenset(gallery.values())),
        *_more_of_flags(material, grounds, lost["country"]),
    ]
    return kept + _numbered(more, last), gallery


def _numbered(drawn: Iterable[dict[str, Any]], last: dict[str, int]) -> list[Draft]:
    drafts = []
    for draft in drawn:
        last[draft["split"]] += 1
        drafts.append(Draft(number=last[draft["split"]], **draft))
    return drafts


def _of_photos(material: Material, grounds: Backgrounds) -> Iterator[dict[str, Any]]:
    taken: dict[tuple[str, str], int] = {}
    for photo in material.photos:
        entity = material.entity_of(photo)
        if entity is None:
            continue
        random = material.random(photo.image)
        split = photo.split
        if photo.domain == IMAGENET and random.random() < VAL_OF_CLASSES:
            split = "val"
        place = (entity.key, split)
        if taken.setdefault(place, 0) >= PHOTOS_AN_ENTITY[split] and entity.category != "cat":
            continue
        taken[place] += 1
        left = list(entity.facts)
        for _ in range(QUESTIONS_A_PHOTO.get(entity.category, 1)):
            fact = draw_fact(left, random)
            if fact is None and (entity.category in ("animal", "thing") and not entity.facts):
                break  # a class without facts is no entity of this benchmark
            left = [one for one in left if fact is None or one.relation != fact.relation]
            yield {
                "split": split,
                **material.about(entity),
                **_alone_or_small(photo, split, entity, grounds, random),
                **_question(entity, fact, random),
            }
            if fact is None:
                break


def _alone_or_small(
    photo: Photo, split: str, entity: Entity, grounds: Backgrounds, random: Random
) -> dict[str, Any]:
    """The photo as it is, or pasted into another."""
    ground = None
    if entity.category in RIVALS and random.random() < SMALL:
        ground = grounds.draw(split, RIVALS[entity.category], random)
    return {
        "photo": f"entities/{photo.image}",
        "background": ground,
        "fraction": SMALL_AREA if ground else None,
    }


def _more_of_photos(
    material: Material,
    grounds: Backgrounds,
    kept: Sequence[Draft],
    lost: Mapping[str, int],
    gallery: frozenset[str],
) -> Iterator[dict[str, Any]]:
    """As many questions of `train` as a category has lost, about its seen entities: first of
    photos that are asked about least, and never the same of a photo."""
    asked: dict[str | None, set[str]] = {}
    for draft in kept:
        asked.setdefault(draft.photo, set()).add(draft.relation)
    drawn: list[tuple[int, float, Photo, Entity, Random]] = []
    for photo in material.photos:
        entity, name = material.entity_of(photo), f"entities/{photo.image}"
        if entity is None or photo.domain == IMAGENET or photo.split != "train":
            continue
        if entity.key not in material.unseen and name not in gallery:
            random = material.random(f"more:{photo.image}")
            drawn.append((len(asked.get(name, ())), random.random(), photo, entity, random))
    left = dict(lost)
    for _, _, photo, entity, random in sorted(drawn, key=lambda one: one[:2]):
        already = asked.get(f"entities/{photo.image}", set())
        fact = draw_fact([f for f in entity.facts if f.relation not in already], random)
        question = _question(entity, fact, random)
        if left.get(entity.category, 0) > 0 and question["relation"] not in already:
            left[entity.category] -= 1
            yield {
                "split": "train",
                **material.about(entity),
                **_alone_or_small(photo, "train", entity, grounds, random),
                **question,
            }


def draw_fact(facts: Sequence[Fact], random: Random) -> Fact | None:
    """One fact, every relation as likely as another; None for a perceptual question."""
    chance = random.random()
    if not facts or chance < PERCEPTUAL:
        return None
    several = [fact for fact in facts if len(fact.hops) > 1]
    single = [fact for fact in facts if len(fact.hops) == 1]
    chosen = several if several and (chance < PERCEPTUAL + MULTIHOP or not single) else single
    relation = random.choice(sorted({fact.relation for fact in chosen}))
    return random.choice([fact for fact in chosen if fact.relation == relation])


def _question(entity: Entity, fact: Fact | None, random: Random) -> dict[str, Any]:
    if fact is not None:
        return {
            "fact": fact,
            "relation": fact.relation,
            "question": ask(fact, entity.noun, random),
            "answers": fact.answers,
        }
    colour, pepper, _ = entity.names[0].partition(" bell pepper")
    if pepper and random.random() < 0.5:
        relation, answers = "colour", accepted([colour])
        question = random.choice(templates()["colour"])
    else:
        relation, answers = NAME, entity.called
        wordings = templates()["names"]
        question = random.choice(wordings.get(entity.category, wordings["thing"]))
        question = question.format(noun=entity.noun)
    return {
        "fact": None,
        "relation": relation,
        "question": question,
        "answers": answers,
    }


def _of_flags(material: Material, grounds: Backgrounds) -> Iterator[dict[str, Any]]:
    for country in material.countries:
        for split, scenes in SCENES_A_COUNTRY.items():
            random = material.random(f"{country.entity.key}:{split}")
            for number in range(scenes):
                yield from _flag(country, split, number, material, grounds, random)


def _more_of_flags(material: Material, grounds: Backgrounds, lost: int) -> Iterator[dict[str, Any]]:
    """Further scenes of seen countries, one after the other."""
    seen = [one for one in material.countries if one.entity.key not in material.unseen]
    random = material.random("more:flags")
    random.shuffle(seen)
    for number in range(lost if seen else 0):
        country = seen[number % len(seen)]
        yield from _flag(country, "train", number, material, grounds, random)


def _flag(
    country: Country,
    split: str,
    number: int,
    material: Material,
    grounds: Backgrounds,
    random: Random,
) -> Iterator[dict[str, Any]]:
    ground = grounds.draw(split, RIVALS["country"], random)
    if ground is not None:
        entity = country.entity
        yield {
            "split": split,
            **material.about(entity),
            "photo": country.flag,
            "background": ground,
            "fraction": SMALL_AREA if number % 2 else LARGE_AREA,
            **_question(entity, draw_fact(entity.facts, random), random),
        }


def _of_scenes(material: Material, grounds: Backgrounds) -> Iterator[dict[str, Any]]:
    """Is there a … in the picture: as many yes as no."""
    labels = material.labels
    classes = sorted({label for found in labels.values() for label in found})
    for split, number_of in PRESENCE.items():
        random = material.random(f"presence:{split}")
        names = [name for name in grounds.of_split[split] if labels[name]]
        for number, name in enumerate(random.sample(names, min(number_of, len(names)))):
            absent = [one for one in classes if one not in labels[name]]
            answer = "yes" if number % 2 or not absent else "no"
            # People are in every second photo: another answer than "yes" would surprise.
            present = sorted(labels[name] - {"person"} or labels[name])
            thing = random.choice(present if answer == "yes" else absent)
            wording = random.choice(templates()["presence"])
            yield {
                "split": split,
                "category": "scene",
                "entity": f"coco:{thing}",
                "name": thing,
                "popularity": 0,
                "unseen": False,
                "photo": None,
                "background": f"coco/{name}",
                "fraction": None,
                "fact": None,
                "relation": "presence",
                "question": wording.format(a_thing=_with_article(thing)),
                "answers": (answer,),
            }


def _with_article(thing: str) -> str:
    if thing in ("skis", "scissors"):
        return thing
    return f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"
