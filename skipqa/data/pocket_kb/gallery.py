"""The gallery: one labelled picture of every entity that has some, for a lookup by sight.

Enters: entities and their photos. Leaves: a photo of each that no question uses, of those to train
on, and its row. A flag has one picture, which is also pasted elsewhere. ImageNet classes have one
photo each, which is asked about, and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from skipqa.data.pocket_kb.facts import Entity
from skipqa.data.pocket_kb.material import IMAGENET, Material
from skipqa.data.pocket_kb.pictures import Sources
from skipqa.data.scenes import to_webp


def choose_gallery(material: Material, asked: Collection[str | None]) -> dict[str, str]:
    """The photo of each entity by its key, where possible one that nothing was asked of yet."""
    best: dict[str, tuple[bool, float, str]] = {}
    for photo in material.photos:
        entity = material.entity_of(photo)
        if entity is None or photo.domain == IMAGENET or photo.split != "train":
            continue
        name = f"entities/{photo.image}"
        rank = (name in asked, material.random(f"gallery:{photo.image}").random(), name)
        best[entity.key] = min(rank, best.get(entity.key, rank))
    return {key: name for key, (_, _, name) in best.items()}


def gallery_rows(
    material: Material, photos: Mapping[str, str], sources: Sources
) -> Iterator[tuple[dict[str, Any], Callable[[], bytes]]]:
    """A row and its picture for each entity, in the order of their keys."""
    entities = {entity.key: entity for entity in material.entities.values()}
    entities |= {country.entity.key: country.entity for country in material.countries}
    names = {**photos, **{country.entity.key: country.flag for country in material.countries}}
    for key in sorted(names):
        yield _row(entities[key], names[key], key in material.unseen), _content(names[key], sources)


def _row(entity: Entity, photo: str, unseen: bool) -> dict[str, Any]:
    stem = photo.removeprefix("entities/").rpartition(".")[0]
    return {
        "entity": entity.key,
        "name": entity.names[0],
        "kind": entity.category,
        "image": f"gallery/{stem}.webp",
        "photo": photo,
        "unseen": unseen,
    }


def _content(photo: str, sources: Sources) -> Callable[[], bytes]:
    if photo.startswith("flags/"):
        return lambda: to_webp(sources.image(photo))
    return lambda: sources.bytes(photo)
