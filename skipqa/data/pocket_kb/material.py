"""What questions are drawn from: photos, entities with facts, and photos to paste things into.

Enters: what `build.py` has read. Leaves: draws by chance that depend on the seed and a name alone,
so that one photo more or less leaves the others' questions as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from skipqa.data.pocket_kb.corpus import Corpus
from skipqa.data.pocket_kb.countries import Country
from skipqa.data.pocket_kb.draft import Photo
from skipqa.data.pocket_kb.facts import Entity

VAL_OF_COCO = 0.09
IMAGENET = "imagenet"  # the domain of photos that have no entities of their own: one of each class

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


@dataclass(frozen=True, slots=True)
class Material:
    """All that questions are drawn from."""

    photos: Sequence[Photo]
    labels: Mapping[str, frozenset[str]]  # of each COCO photo
    entities: Mapping[str, Entity]  # by the domain/label of their photos
    countries: Sequence[Country]
    popularity: Mapping[str, int]
    corpus: Corpus
    unseen: frozenset[str]  # keys of entities that nothing is trained on
    seed: int

    def entity_of(self, photo: Photo) -> Entity | None:
        return self.entities.get(f"{photo.domain}/{photo.label}")

    def random(self, what: str) -> Random:
        return Random(f"{self.seed}:{what}")

    def about(self, entity: Entity) -> dict[str, Any]:
        """What a draft says of its entity."""
        return {
            "category": entity.category,
            "entity": entity.key,
            "name": entity.names[0],
            "popularity": self.popularity[entity.key],
            "unseen": entity.key in self.unseen,
        }


class Backgrounds:
    """COCO photos shared out between the splits; each draw avoids rivals of what is pasted."""

    def __init__(self, labels: Mapping[str, frozenset[str]], seed: int) -> None:
        self.labels = labels
        self.of_split: dict[str, list[str]] = {"train": [], "val": []}
        for name in sorted(labels):
            held = Random(f"{seed}:coco:{name}").random() < VAL_OF_COCO
            self.of_split["val" if held else "train"].append(name)

    def draw(
        self,
        split: str,
        rivals: frozenset[str],
        random: Random,
        may: Callable[[str], bool] = lambda _: True,
    ) -> str | None:
        """One that shows no rival and that `may` be used; None where none is found."""
        names = self.of_split[split]
        for _ in range(100 if names else 0):
            name = random.choice(names)
            if not self.labels[name] & rivals and may(name):
                return f"coco/{name}"
        return None
