"""Which photos may be shown in one picture of several things.

Enters: photos, entities, COCO photos. Leaves: draws of things of given kinds and of a photo to
paste them into, all on one side of what training holds out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random

from skipqa.data.held_out import is_fresh, is_held_out
from skipqa.data.pocket_kb.facts import Entity
from skipqa.data.pocket_kb.material import IMAGENET, RIVALS, Backgrounds, Material
from skipqa.data.pocket_kb.pictures import Sources

# How often each is drawn; there are few breeds of cats
KINDS = {"dog": 3, "flower": 3, "grocery": 3, "country": 3, "cat": 1}
# The longer side of a thing, as a fraction of the picture's: a flag fills its photo, a dog does not
LEAST = {"dog": 0.16, "flower": 0.16, "grocery": 0.16, "country": 0.12, "cat": 0.16}
RIVALS_OF_ALL = frozenset({"teddy bear"}).union(*(RIVALS[kind] for kind in KINDS))


class Casting:
    """Photos that may be shown together: by the side they are on, their kind and their entity.

    A side is `val`, or what training makes of a photo: `train`, `fresh` or `held-out`.
    """

    def __init__(
        self,
        material: Material,
        grounds: Backgrounds,
        sources: Sources,
        gallery: Collection[str],
    ) -> None:
        self.corpus = material.corpus
        self.grounds = grounds
        self.sources = sources
        self.aspects: dict[str, float] = {}
        self.photos: dict[str, dict[str, dict[str, tuple[Entity, list[str]]]]] = {}
        for photo in material.photos:
            entity, name = material.entity_of(photo), f"entities/{photo.image}"
            if entity is None or photo.domain == IMAGENET or name in gallery:
                continue
            if photo.split == "val":
                self._add("val", entity, name)
            elif entity.key not in material.unseen:
                self._add(_side(photo.image), entity, name)
        for country in material.countries:
            self._add("val", country.entity, country.flag)
            if country.entity.key not in material.unseen:
                self._add("train", country.entity, country.flag)
                self._add(_held_out_side(country.flag), country.entity, country.flag)

    def _add(self, side: str, entity: Entity, photo: str) -> None:
        of_kind = self.photos.setdefault(side, {}).setdefault(entity.category, {})
        of_kind.setdefault(entity.key, (entity, []))[1].append(photo)

    def kinds(self, side: str) -> list[str]:
        return [kind for kind in KINDS if kind in self.photos.get(side, {})]

    def draw(
        self, side: str, counts: Mapping[str, int], random: Random
    ) -> list[tuple[Entity, str]]:
        """So many entities of each kind, as far as there are, with a photo of each."""
        found = []
        for kind, count in counts.items():
            known = list(self.photos[side][kind].values())
            for entity, photos in random.sample(known, min(count, len(known))):
                found.append((entity, random.choice(photos)))
        return found

    def background(self, side: str, random: Random) -> str | None:
        """What a flag is pasted into decides on which side it is: it has to agree with the rest."""

        def may(name: str) -> bool:
            return side == "val" or _side(name) == side

        split = "val" if side == "val" else "train"
        return self.grounds.draw(split, RIVALS_OF_ALL, random, may)

    def aspect(self, photo: str) -> float:
        if photo not in self.aspects:
            self.aspects[photo] = self.sources.aspect(photo)
        return self.aspects[photo]


def _side(photo: str) -> str:
    return _held_out_side(photo) if is_held_out(photo) else "train"


def _held_out_side(photo: str) -> str:
    return "fresh" if is_fresh(photo) else "held-out"
