"""Which words single out one of several things: its kind, its place, its size, its card's colour.

Enters: the things that a picture shows, with their boxes. Leaves: every reference to one of them
that is true of it alone, by a margin that people see. It knows geometry and words, no pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from skipqa.data.pocket_kb.facts import templates
from skipqa.data.scenes import Placement

AskedBy = Literal["kind", "place", "size", "colour"]
WAYS: tuple[AskedBy, ...] = ("kind", "place", "size", "colour")
NOUNS = {  # of one and of several
    "dog": ("dog", "dogs"),
    "cat": ("cat", "cats"),
    "flower": ("flower", "flowers"),
    "grocery": ("grocery", "groceries"),
    "country": ("flag", "flags"),
}
MARGIN = 0.2  # of the picture, between the centres of two things of which one is further left
CORNER, OTHER_CORNERS = 0.33, 0.5  # a thing in a corner is within one, all others beyond the other
RATIO = 1.5  # of the sides of two things of which one is called larger


@dataclass(frozen=True, slots=True)
class Shown:
    kind: str
    box: Placement
    card: str | None = None  # the colour of the card that it lies on


@dataclass(frozen=True, slots=True)
class Reference:
    """`word` says which: "left", "larger", "yellow"; a kind needs none."""

    by: AskedBy
    word: str = ""

    def phrase(self, kind: str, half: str, random: Random) -> str:
        """In one of the wordings of this half: "train" or "val"."""
        known = templates()["crowded"]["references"][self.by]
        wordings = known if self.by in ("kind", "colour") else known[self.word]
        wording: str = random.choice(wordings[half])
        noun, nouns = NOUNS[kind]
        return wording.format(noun=noun, nouns=nouns, colour=self.word)


def references(things: Sequence[Shown], asked: int) -> list[Reference]:
    """All that hold. A kind is enough where there is one of it; otherwise it takes more."""
    one = things[asked]
    others = [other for place, other in enumerate(things) if place != asked]
    alike = [other for other in others if other.kind == one.kind]
    if not alike:
        return [Reference("kind")]
    found = [Reference("place", word) for word in _places(one, alike)]
    found += [Reference("size", word) for word in _sizes(one, alike)]
    if one.card is not None and all(other.card != one.card for other in others):
        found.append(Reference("colour", one.card))
    return found


def _places(one: Shown, alike: Sequence[Shown]) -> Iterator[str]:
    """Mirrored, right is left and bottom is top."""
    sides: tuple[tuple[str, Callable[[Placement], float]], ...] = (
        ("left", lambda box: box.x),
        ("right", lambda box: 1 - box.x),
        ("top", lambda box: box.y),
        ("bottom", lambda box: 1 - box.y),
    )
    for word, from_edge in sides:
        here = from_edge(one.box)
        if here < 0.5 and all(from_edge(other.box) - here >= MARGIN for other in alike):
            yield word
    for down, from_top in sides[2:]:
        for across, from_side in sides[:2]:

            def within(box: Placement, most: float) -> bool:
                return from_top(box) < most and from_side(box) < most  # noqa: B023

            if within(one.box, CORNER) and not any(within(o.box, OTHER_CORNERS) for o in alike):
                yield f"{down} {across}"


def _sizes(one: Shown, alike: Sequence[Shown]) -> Iterator[str]:
    """By the longer side and by the area, so that no shape deceives."""

    def exceeds(large: Placement, small: Placement) -> bool:
        longer = max(large.width, large.height) >= RATIO * max(small.width, small.height)
        return longer and large.area >= RATIO**2 * small.area

    if all(exceeds(one.box, other.box) for other in alike):
        yield "larger" if len(alike) == 1 else "largest"
    if all(exceeds(other.box, one.box) for other in alike):
        yield "smaller" if len(alike) == 1 else "smallest"
