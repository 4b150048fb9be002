"""A drawn thing in a photo: seen at an angle, turned a little, as sharp and as bright as the rest.

Enters: a photo, a drawing, how high a letter is to be, a random generator. Leaves: the picture, and
the boxes of the thing and of its text. A place that overlaps another thing is not taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter

from skipqa.data.rendered_text.carriers import LETTER, Drawn
from skipqa.data.scenes import Placement

SIDE = 640  # pixels
# Capitals are 0.72 of a line. People read 12 pixels; below that the set would test eyesight.
LETTERS = (17, 64)  # pixels of a line's height, the least and the most
TURN = 10.0  # degrees, either way
TILT = 0.12  # of a side: how much the far edge of a thing is shorter than the near one
MOST = 0.72  # of the picture's side that a thing may take
GAP = 12  # pixels between two things
PLACES = 60  # tried for one thing
Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels


class Pasted(NamedTuple):
    thing: Box
    text: Box


def background(photo: Image.Image) -> Image.Image:
    return photo.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def placement(box: Box) -> Placement:
    """As a row stores it."""
    left, top, right, bottom = box
    centre = (left + right) / 2 / SIDE, (top + bottom) / 2 / SIDE
    return Placement(*centre, (right - left) / SIDE, (bottom - top) / SIDE)


def paste(
    canvas: Image.Image, drawn: Drawn, taken: Sequence[Box], random: Random
) -> tuple[Image.Image, Pasted] | None:
    """The picture with the thing in it; None where it found no room."""
    low, high = LETTERS
    line = low * (high / low) ** random.random()
    scale = min(line / LETTER, MOST * SIDE / max(drawn.picture.size))
    if scale * LETTER < low:
        return None
    small = drawn.picture.resize(
        (max(2, round(scale * drawn.picture.width)), max(2, round(scale * drawn.picture.height))),
        Image.Resampling.LANCZOS,
    )
    small = _lit(small, random)
    corners = _seen_from(small.size, random)
    width, height = (math.ceil(corners[:, axis].max()) + 1 for axis in (0, 1))
    if width > SIDE or height > SIDE:
        return None
    for _ in range(PLACES):
        at = random.randint(0, SIDE - width), random.randint(0, SIDE - height)
        thing = (float(at[0]), float(at[1]), float(at[0] + width), float(at[1] + height))
        if not any(_near(thing, other) for other in taken):
            break
    else:
        return None
    to_photo = _homography(_rectangle(small.size), corners)
    warped = small.transform(
        (width, height),
        Image.Transform.PERSPECTIVE,
        _coefficients(np.linalg.inv(to_photo).astype(np.float64)),
        Image.Resampling.BICUBIC,
    )
    picture = canvas.copy()
    picture.paste(warped, at, warped)
    left, top, right, bottom = (scale * side for side in drawn.text)
    outline = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
    seen = _mapped(to_photo, outline) + at
    text = (*map(float, seen.min(0)), *map(float, seen.max(0)))
    return picture, Pasted(thing, (text[0], text[1], text[2], text[3]))


def finished(picture: Image.Image, random: Random) -> Image.Image:
    """As a camera leaves it: a little soft."""
    return picture.filter(ImageFilter.GaussianBlur(0.9 * random.random()))


def _lit(thing: Image.Image, random: Random) -> Image.Image:
    light = ImageEnhance.Brightness(thing.convert("RGB")).enhance(0.7 + 0.4 * random.random())
    light.putalpha(thing.getchannel("A"))
    return light


def _rectangle(size: tuple[int, int]) -> NDArray[np.float64]:
    width, height = size
    return np.array([(0, 0), (width, 0), (width, height), (0, height)], dtype=np.float64)


def _seen_from(size: tuple[int, int], random: Random) -> NDArray[np.float64]:
    """[4, 2]: where the corners go, the smallest coordinate being 0."""
    width, height = size
    corners = _rectangle(size)
    near = TILT * (2 * random.random() - 1)  # positive: the right edge is farther away
    shorter = abs(near) * height / 2
    ends = (1, 2) if near > 0 else (0, 3)
    corners[ends[0], 1] += shorter
    corners[ends[1], 1] -= shorter
    angle = math.radians(TURN * (2 * random.random() - 1))
    turn = np.array([(math.cos(angle), -math.sin(angle)), (math.sin(angle), math.cos(angle))])
    turned = (corners - (width / 2, height / 2)) @ turn.T
    return turned - turned.min(0)


def _near(one: Box, other: Box) -> bool:
    return (
        one[0] < other[2] + GAP
        and other[0] < one[2] + GAP
        and one[1] < other[3] + GAP
        and other[1] < one[3] + GAP
    )


def _homography(source: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """[3, 3] that maps four points to four points."""
    rows = []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows.append([x, y, 1, 0, 0, 0, -u * x, -u * y])
        rows.append([0, 0, 0, x, y, 1, -v * x, -v * y])
    solved = np.linalg.solve(np.array(rows), target.reshape(-1))
    return np.append(solved, 1.0).reshape(3, 3)


def _coefficients(matrix: NDArray[np.float64]) -> list[float]:
    """As Pillow takes them."""
    return [float(value) for value in (matrix / matrix[2, 2]).reshape(-1)[:8]]


def _mapped(matrix: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
    homogeneous = np.column_stack((points, np.ones(len(points)))) @ matrix.T
    mapped: NDArray[np.float64] = homogeneous[:, :2] / homogeneous[:, 2:]
    return mapped
