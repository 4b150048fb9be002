"""Which questions are asked of which pictures: a plan drawn by chance, the same for a seed.

Enters: photos, COCO labels, entities with facts. Leaves: drafts in a fixed order, each of which
renders itself into a row and its picture. Every draw depends on the seed and the photo's name
alone, so that one photo more or less leaves the others' questions as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from skipqa.data.pocket_kb.countries import Country
from skipqa.data.pocket_kb.facts import Entity, Fact, ask, templates
from skipqa.data.pocket_kb.text import accepted
from skipqa.data.scenes import compose, to_webp
from skipqa.image import open_image

if TYPE_CHECKING:
    from skipqa.data.pocket_kb.pictures import Archive

PERCEPTUAL, MULTIHOP, SMALL = 0.15, 0.25, 0.35  # fractions of a photo's questions
VAL_OF_CLASSES = 0.3  # ImageNet photos have one split in the data: this part of them is held out
VAL_OF_COCO = 0.09
LONGTAIL = 0  # passages of the default corpus that name the entity, its own definition aside
PHOTOS_AN_ENTITY = {"train": 17, "val": 6}
QUESTIONS_A_PHOTO = {"cat": 2, "animal": 2, "thing": 2}
SCENES_A_COUNTRY = {"train": 8, "val": 2}
PRESENCE = {"train": 700, "val": 200}
SMALL_AREA, LARGE_AREA = (0.04, 0.095), (0.15, 0.35)

ANIMALS = frozenset("bird cat dog horse sheep cow elephant bear zebra giraffe".split())
FOOD = frozenset(
    "banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,bottle,cup,bowl,"
    "wine glass,dining table,refrigerator,oven".split(",")
)
PLANTS = frozenset({"potted plant", "vase"})
# What a photo must not show if the thing pasted into it is to be the only one of its kind.
RIVALS = {
    "dog": ANIMALS,
    "cat": ANIMALS,
    "animal": ANIMALS,
    "flower": PLANTS,
    "grocery": FOOD,
    "country": frozenset[str](),
}


class Photo(NamedTuple):
    image: str
    domain: str
    label: str
    split: str


@dataclass(frozen=True, slots=True)
class Draft:
    """One question and how its picture is made."""

    split: str
    number: int
    category: str
    entity: str
    name: str  # of the entity, as people write it
    question: str
    answers: tuple[str, ...]
    fact: Fact | None  # None: the picture alone has the answer
    relation: str
    popularity: int
    photo: str | None  # "entities/…" or "flags/…"
    background: str | None  # "coco/…"; the picture itself where there is no photo
    fraction: tuple[float, float] | None  # of the background that the photo covers

    @property
    def defined(self) -> bool:
        """Whether the entity was found by its definition, which names it of course."""
        return self.entity.startswith("class:")

    @property
    def id(self) -> str:
        return f"{self.split}-{self.number:05d}"

    def subset(self) -> list[str]:
        fact = self.fact
        names = {
            "small": self.fraction == SMALL_AREA,
            "multihop": fact is not None and len(fact.hops) > 1,
            "longtail": fact is not None and self.popularity - self.defined <= LONGTAIL,
            "perceptual": fact is None,
        }
        return [name for name, holds in names.items() if holds]

    def render(
        self, photos: Archive, backgrounds: Archive, flags: Path, seed: int
    ) -> tuple[dict[str, Any], Callable[[], bytes]]:
        """The row, and the picture's bytes when they are called for."""
        box = None
        content: Callable[[], bytes]
        if self.background is None:
            assert self.photo is not None
            image, source = self.photo, self.photo.partition("/")[2]
            content = lambda: photos.bytes(source)  # noqa: E731
        elif self.photo is None:
            image, scene = self.background, self.background.partition("/")[2]
            content = lambda: backgrounds.bytes(scene)  # noqa: E731
        else:
            assert self.fraction is not None
            kind, _, name = self.photo.partition("/")
            subject = open_image(flags / name) if kind == "flags" else photos.image(name)
            random = Random(f"{seed}:{self.id}:place")
            ground = backgrounds.image(self.background.partition("/")[2])
            picture, place = compose(ground, subject, random.uniform(*self.fraction), random)
            box = [round(value, 4) for value in place]
            image = f"scenes/{self.id}.webp"
            content = lambda: to_webp(picture)  # noqa: E731
        row = {
            "question_id": self.id,
            "image": image,
            "question": self.question,
            "answers": dict.fromkeys(self.answers, 1.0),
            "category": self.category,
            "gold": list(self.fact.gold) if self.fact else [],
            "subset": self.subset(),
            "split": self.split,
            "entity": self.entity,
            "name": self.name,
            "popularity": self.popularity,
            "relation": self.relation,
            "hops": [list(hop) for hop in self.fact.hops] if self.fact else [],
            "bridge": self.fact.bridge if self.fact else "",
            "photo": self.photo,
            "background": self.background,
            "box": box,
        }
        return row, content


def plan(
    photos: Sequence[Photo],
    labels: Mapping[str, frozenset[str]],
    entities: Mapping[str, Entity],
    countries: Sequence[Country],
    popularity: Mapping[str, int],
    seed: int,
) -> list[Draft]:
    grounds = Backgrounds(labels, seed)
    drafts = [
        *_of_photos(photos, entities, popularity, grounds, seed),
        *_of_flags(countries, popularity, grounds, seed),
        *_of_scenes(labels, grounds, seed),
    ]
    Random(f"{seed}:order").shuffle(drafts)
    numbers = dict.fromkeys(("train", "val"), 0)
    numbered = []
    for draft in drafts:
        numbers[draft["split"]] += 1
        numbered.append(Draft(number=numbers[draft["split"]], **draft))
    return numbered


class Backgrounds:
    """COCO photos shared out between the splits; each draw avoids rivals of what is pasted."""

    def __init__(self, labels: Mapping[str, frozenset[str]], seed: int) -> None:
        self.labels = labels
        self.of_split: dict[str, list[str]] = {"train": [], "val": []}
        for name in sorted(labels):
            held = Random(f"{seed}:coco:{name}").random() < VAL_OF_COCO
            self.of_split["val" if held else "train"].append(name)

    def draw(self, split: str, category: str, random: Random) -> str | None:
        names = self.of_split[split]
        for _ in range(100 if names else 0):
            name = random.choice(names)
            if not self.labels[name] & RIVALS[category]:
                return f"coco/{name}"
        return None


def _of_photos(
    photos: Sequence[Photo],
    entities: Mapping[str, Entity],
    popularity: Mapping[str, int],
    grounds: Backgrounds,
    seed: int,
) -> Iterator[dict[str, Any]]:
    taken: dict[tuple[str, str], int] = {}
    for photo in photos:
        entity = entities.get(f"{photo.domain}/{photo.label}")
        if entity is None:
            continue
        random = Random(f"{seed}:{photo.image}")
        split = photo.split
        if photo.domain == "imagenet" and random.random() < VAL_OF_CLASSES:
            split = "val"
        place = (entity.key, split)
        if taken.setdefault(place, 0) >= PHOTOS_AN_ENTITY[split] and entity.category != "cat":
            continue
        taken[place] += 1
        left = list(entity.facts)
        for _ in range(QUESTIONS_A_PHOTO.get(entity.category, 1)):
            fact = _draw_fact(left, random)
            if fact is None and (entity.category in ("animal", "thing") and not entity.facts):
                break  # a class without facts is no entity of this benchmark
            left = [one for one in left if fact is None or one.relation != fact.relation]
            fraction = ground = None
            if entity.category in RIVALS and random.random() < SMALL:
                ground = grounds.draw(split, entity.category, random)
                fraction = SMALL_AREA if ground else None
            yield {
                "split": split,
                "category": entity.category,
                "entity": entity.key,
                "name": entity.names[0],
                "popularity": popularity[entity.key],
                "photo": f"entities/{photo.image}",
                "background": ground,
                "fraction": fraction,
                **_question(entity, fact, random),
            }
            if fact is None:
                break


def _draw_fact(facts: Sequence[Fact], random: Random) -> Fact | None:
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
        relation, answers = "colour", [colour]
        question = random.choice(templates()["colour"])
    else:
        relation, answers = "name", [name for name in entity.names if name != entity.noun]
        wordings = templates()["names"]
        question = random.choice(wordings.get(entity.category, wordings["thing"]))
        question = question.format(noun=entity.noun)
    return {
        "fact": None,
        "relation": relation,
        "question": question,
        "answers": accepted(answers),
    }


def _of_flags(
    countries: Sequence[Country],
    popularity: Mapping[str, int],
    grounds: Backgrounds,
    seed: int,
) -> Iterator[dict[str, Any]]:
    for country in countries:
        entity = country.entity
        for split, scenes in SCENES_A_COUNTRY.items():
            random = Random(f"{seed}:{entity.key}:{split}")
            for number in range(scenes):
                ground = grounds.draw(split, "country", random)
                if ground is None:
                    continue
                yield {
                    "split": split,
                    "category": "country",
                    "entity": entity.key,
                    "name": entity.names[0],
                    "popularity": popularity[entity.key],
                    "photo": f"flags/{country.iso}.png",
                    "background": ground,
                    "fraction": SMALL_AREA if number % 2 else LARGE_AREA,
                    **_question(entity, _draw_fact(entity.facts, random), random),
                }


def _of_scenes(
    labels: Mapping[str, frozenset[str]], grounds: Backgrounds, seed: int
) -> Iterator[dict[str, Any]]:
    """Is there a … in the picture: as many yes as no."""
    classes = sorted({label for found in labels.values() for label in found})
    for split, number_of in PRESENCE.items():
        random = Random(f"{seed}:presence:{split}")
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
