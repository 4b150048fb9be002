"""Images as an endpoint takes them: upright, reduced, JPEG in a data URL. Knows no prompts."""

from __future__ import annotations

import base64
from io import BytesIO

from PIL import Image

from skipqa.prompted.endpoint import Picture
from skipqa.types import Box

QUALITY = 90


def as_picture(image: Image.Image, longest_side: int) -> Picture:
    """`image` in RGB; one whose longer side exceeds `longest_side` is reduced."""
    reduced = image.copy()
    reduced.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    file = BytesIO()
    reduced.save(file, "JPEG", quality=QUALITY)
    coded = base64.b64encode(file.getvalue()).decode("ascii")
    return Picture(f"data:image/jpeg;base64,{coded}", reduced.width, reduced.height)


def crop(image: Image.Image, box: Box, margin: float, smallest: float) -> Image.Image:
    """The box and something around it: its sides times `margin`, at least `smallest` of the
    image's, moved into the image."""
    left, right = _widened(box[0], box[2], margin, smallest)
    top, bottom = _widened(box[1], box[3], margin, smallest)
    x1, x2 = _pixels(left, right, image.width)
    y1, y2 = _pixels(top, bottom, image.height)
    return image.crop((x1, y1, x2, y2))


def _widened(low: float, high: float, margin: float, smallest: float) -> tuple[float, float]:
    side = min(1.0, max((high - low) * margin, smallest))
    start = min(max((low + high - side) / 2, 0.0), 1.0 - side)
    return start, start + side


def _pixels(low: float, high: float, size: int) -> tuple[int, int]:
    """At least one."""
    first = min(round(low * size), size - 1)
    return first, min(max(round(high * size), first + 1), size)
