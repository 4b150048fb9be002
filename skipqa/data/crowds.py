"""Several things in one photo: where each goes, and the picture.

Enters: the shapes of the things, or their pictures with the rectangles that were found for them.
Leaves: rectangles that do not touch, and the composed picture. A thing may lie on a card of one
colour, which shows as a frame around it; the rectangle is the thing's own. What the pictures show
is the caller's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from PIL import Image

from skipqa.data.scenes import Placement, soft_mask

SIDE = 320  # pixels
MOST = 0.40  # the longer side of a thing, as a fraction of the picture's
GAP = 4  # pixels between two things, their cards included
FRAME = 0.14  # of a thing's longer side: how far its card shows around it
LEAST_FRAME = 6  # pixels
PLACES = 40  # tried for one thing before the whole layout is given up
CARDS = {  # well apart, also for people who confuse red and green
    "red": (205, 25, 30),
    "yellow": (255, 225, 25),
    "green": (20, 140, 60),
    "blue": (25, 70, 215),
    "white": (255, 255, 255),
    "black": (0, 0, 0),
}
# A thin line around a card that photos may be as bright or as dark as
LINES = {"white": (0, 0, 0), "black": (255, 255, 255)}


class Shape(NamedTuple):
    """Of a thing that has no place yet."""

    aspect: float  # its width by its height
    least: float  # the longer side that it needs to be recognised, as a fraction of the picture's


@dataclass(frozen=True, slots=True)
class Rectangle:
    """In pixels of the picture."""

    left: int
    top: int
    width: int
    height: int

    @property
    def longer(self) -> int:
        return max(self.width, self.height)

    @property
    def box(self) -> Placement:
        centre = ((self.left + self.width / 2) / SIDE, (self.top + self.height / 2) / SIDE)
        return Placement(*centre, self.width / SIDE, self.height / SIDE)

    @property
    def corners(self) -> tuple[int, int, int, int]:
        return self.left, self.top, self.left + self.width, self.top + self.height

    def grown(self, by: int) -> Rectangle:
        return Rectangle(self.left - by, self.top - by, self.width + 2 * by, self.height + 2 * by)

    def touches(self, other: Rectangle) -> bool:
        return (
            self.left < other.left + other.width
            and other.left < self.left + self.width
            and self.top < other.top + other.height
            and other.top < self.top + self.height
        )


def frame_of(rectangle: Rectangle) -> int:
    """How many pixels of a card show on each side of a thing."""
    return max(LEAST_FRAME, round(FRAME * rectangle.longer))


def arrange(
    shapes: Sequence[Shape], on_cards: bool, random: Random
) -> tuple[Rectangle, ...] | None:
    """A rectangle for each thing, its size drawn by chance; None where they found no room. Between
    the least and the most, each ratio of sizes is as common as another."""
    sizes = [_fit(shape, shape.least * (MOST / shape.least) ** random.random()) for shape in shapes]
    found: dict[int, Rectangle] = {}
    taken: list[Rectangle] = []
    for place in sorted(range(len(shapes)), key=lambda i: -max(sizes[i])):  # large ones need room
        width, height = sizes[place]
        frame = frame_of(Rectangle(0, 0, width, height)) if on_cards else 0
        for _ in range(PLACES):
            one = Rectangle(
                random.randint(frame, SIDE - width - frame),
                random.randint(frame, SIDE - height - frame),
                width,
                height,
            )
            whole = one.grown(frame)
            if not any(whole.grown(GAP).touches(other) for other in taken):
                break
        else:
            return None
        found[place] = one
        taken.append(whole)
    return tuple(found[place] for place in range(len(shapes)))


def _fit(shape: Shape, longer: float) -> tuple[int, int]:
    """Width and height in pixels; rounded inwards, so that no bound is passed."""
    side = max(math.ceil(shape.least * SIDE), math.floor(longer * SIDE))
    shorter = max(1, round(side * min(shape.aspect, 1 / shape.aspect)))
    return (side, shorter) if shape.aspect >= 1 else (shorter, side)


def compose_crowd(
    background: Image.Image, things: Iterable[tuple[Image.Image, Rectangle, str | None]]
) -> Image.Image:
    """A square picture; a thing on a card has hard edges, another a soft one."""
    canvas = background.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    for picture, place, card in things:
        size = (place.width, place.height)
        small = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        if card is None:
            canvas.paste(small, (place.left, place.top), soft_mask(*size))
            continue
        around = place.grown(frame_of(place))
        canvas.paste(LINES.get(card, CARDS[card]), around.corners)
        canvas.paste(CARDS[card], around.grown(-1).corners)
        canvas.paste(small, (place.left, place.top))
    return canvas
