"""A picture of several things, and a question about one of them.

Enters: what `crowded.py` has drawn. Leaves: a row of the benchmark that lists everything shown, and
the picture's bytes when they are called for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from skipqa.data.crowds import SIDE, Rectangle, compose_crowd
from skipqa.data.pocket_kb.draft import Draft
from skipqa.data.pocket_kb.facts import Entity
from skipqa.data.pocket_kb.pictures import Sources
from skipqa.data.pocket_kb.references import AskedBy, Shown
from skipqa.data.scenes import Placement, to_webp


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
