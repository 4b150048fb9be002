"""Composed pictures: something pasted with a soft edge into a photo, at a place drawn by chance.

Enters: two pictures, the fraction of the whole that the pasted one may cover, a random generator.
Leaves: the picture and the box that was covered. What the pictures show is the caller's business.
"""

from __future__ import annotations

import math
from io import BytesIO
from random import Random
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFilter

SIDE = 256  # pixels; a thing on a tenth of it is still recognised by people
QUALITY = 80
EDGE = 0.04  # of the shorter side of what is pasted: where it fades into the photo


class Placement(NamedTuple):
    """Centre and size of what was pasted, relative to the picture: the box as Pocket-KB stores it.

    `tasks/pocket_kb.py` reads it into a `Box`.
    """

    x: float
    y: float
    width: float
    height: float

    @property
    def area(self) -> float:
        return self.width * self.height

    def rounded(self) -> list[float]:
        """As a row stores it."""
        return [round(value, 4) for value in self]


def compose(
    background: Image.Image, subject: Image.Image, fraction: float, random: Random
) -> tuple[Image.Image, Placement]:
    """A square picture with `subject` on at most `fraction` of it."""
    canvas = background.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    scale = math.sqrt(fraction * SIDE * SIDE / (subject.width * subject.height))
    scale = min(scale, SIDE / subject.width, SIDE / subject.height)
    # Rounded down, so that the fraction is never exceeded.
    width, height = (max(1, math.floor(scale * side)) for side in subject.size)
    left, top = random.randint(0, SIDE - width), random.randint(0, SIDE - height)
    small = subject.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
    canvas.paste(small, (left, top), soft_mask(width, height))
    centre = ((left + width / 2) / SIDE, (top + height / 2) / SIDE)
    return canvas, Placement(*centre, width / SIDE, height / SIDE)


def soft_mask(width: int, height: int) -> Image.Image:
    """Opaque, but for an edge that fades."""
    edge = max(1.0, EDGE * min(width, height))
    mask = Image.new("L", (width, height), 0)
    inner = (edge, edge, width - 1 - edge, height - 1 - edge)
    if inner[2] > inner[0] and inner[3] > inner[1]:
        ImageDraw.Draw(mask).rounded_rectangle(inner, radius=2 * edge, fill=255)
    else:
        mask.paste(255, (0, 0, width, height))
    return mask.filter(ImageFilter.GaussianBlur(edge / 2))


def to_webp(picture: Image.Image) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, "WEBP", quality=QUALITY, method=4)
    return buffer.getvalue()
