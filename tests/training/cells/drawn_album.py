"""Plain photos, one colour each: whoever knows the colour of a cell knows what it shows."""

from __future__ import annotations

import torch

from skipqa.training.cells.album import Album, BoxedPhoto, Piece
from skipqa.training.cells.scenes import Pixels
from skipqa.training.stage1 import photos
from skipqa.training.stage1.photos import WHOLE

NAMES = (("", "cup"), ("dog", "beagle"), ("flag", "mali"))
COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (40, 40, 40))  # the last: ground
GROUND = 3
LEFT, RIGHT = (0.1, 0.2, 0.4, 0.8), (0.6, 0.2, 0.9, 0.8)


def album() -> Album:
    pieces = tuple(Piece(name, WHOLE, name) for name in range(len(NAMES)))
    boxed = (BoxedPhoto(GROUND, (LEFT, RIGHT), (0, 1), frozenset({2})),)
    pasted = (BoxedPhoto(GROUND, (LEFT,), (0,), None),)
    return Album(NAMES, pieces, {GROUND: frozenset()}, boxed, pasted)


def pixels() -> Pixels:
    size = photos.HIGH_RES
    plain = torch.tensor(COLOURS, dtype=torch.uint8)[:, :, None, None].expand(-1, -1, size, size)
    return Pixels(range(len(COLOURS)), plain)
