"""One question before its picture is made: what a row says, and how its picture comes about.

Enters: what `sample.py` and `crowded.py` have drawn. Leaves: a row of the benchmark, and the
picture's bytes when they are called for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from skipqa.data.pocket_kb.facts import Fact
from skipqa.data.scenes import compose, to_webp

if TYPE_CHECKING:
    from skipqa.data.pocket_kb.pictures import Sources

LONGTAIL = 0  # passages of the default corpus that name the entity, its own definition aside
SMALL_AREA, LARGE_AREA = (0.04, 0.095), (0.15, 0.35)  # fractions of a picture that a thing covers


class Photo(NamedTuple):
    image: str
    domain: str
    label: str
    split: str


class Renderable(Protocol):
    """A question that can make its row and its picture."""

    def render(self, sources: Sources, seed: int) -> tuple[dict[str, Any], Callable[[], bytes]]:
        """The row, and the picture's bytes when they are called for."""
        ...


@dataclass(frozen=True, slots=True)
class Draft:
    """One question about one thing, alone in its picture or pasted into a photo."""

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
    unseen: bool  # nothing about its entity is trained on

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
            "unseen": self.unseen,
        }
        return [name for name, holds in names.items() if holds]

    def row(self, image: str, box: list[float] | None) -> dict[str, Any]:
        return {
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

    def render(self, sources: Sources, seed: int) -> tuple[dict[str, Any], Callable[[], bytes]]:
        if self.photo is None or self.background is None:
            whole = self.photo or self.background
            assert whole is not None
            return self.row(whole, None), lambda: sources.bytes(whole)
        assert self.fraction is not None
        random = Random(f"{seed}:{self.id}:place")
        ground, subject = sources.image(self.background), sources.image(self.photo)
        picture, place = compose(ground, subject, random.uniform(*self.fraction), random)
        image = f"scenes/{self.id}.webp"
        return self.row(image, place.rounded()), lambda: to_webp(picture)
