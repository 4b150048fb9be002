"""The photo with its tokens: kept ones bright in their region's colour, dropped ones dimmed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from skipqa.notebook import COLOURS as NAMED_COLOURS
from skipqa.notebook import DIMMED
from skipqa.state import State
from skipqa.types import Region

COLOURS = tuple((r, g, b) for r, g, b in (bytes.fromhex(colour[1:]) for colour in NAMED_COLOURS))
MAX_HEIGHT = 1_200


def region_colour(region: int) -> tuple[int, int, int]:
    return COLOURS[region % len(COLOURS)]


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def scaled(image: Image.Image, width: int) -> Image.Image:
    """The photo within `width` x `MAX_HEIGHT`."""
    scale = min(width / image.width, MAX_HEIGHT / image.height)
    width, height = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize((width, height), Image.Resampling.LANCZOS)


def overlay(state: State, width: int) -> Image.Image:
    """The scaled photo with the kept patches and boxes, if there are any."""
    photo = scaled(state.image, width)
    if "regions" not in state:
        return photo
    regions, grid = state.regions, state.kept.tokens.grid
    width, height = photo.size
    owner = np.full(grid * grid, -1)
    for number, region in enumerate(regions):
        owner[list(region.members)] = number

    rows = np.arange(height) * grid // height
    columns = np.arange(width) * grid // width
    owner_at = owner.reshape(grid, grid)[rows][:, columns]
    pixels = np.asarray(photo, dtype=np.float32)
    kept = (owner_at >= 0)[..., None]
    tint = np.array([region_colour(max(n, 0)) for n in range(len(regions))], dtype=np.float32)
    tinted = 0.8 * pixels + 0.2 * tint[np.maximum(owner_at, 0)]
    drawn = Image.fromarray(np.where(kept, tinted, DIMMED * pixels).astype(np.uint8))
    _draw_boxes(drawn, regions)
    return drawn


def _draw_boxes(photo: Image.Image, regions: Sequence[Region]) -> None:
    pen = ImageDraw.Draw(photo)
    width, height = photo.size
    for number, region in reversed(list(enumerate(regions))):  # the most salient on top
        left, top, right, bottom = region.box
        x, y = left * width, top * height
        corners = (x, y, max(x, right * width - 1), max(y, bottom * height - 1))
        pen.rectangle(corners, outline=region_colour(number), width=2)
        badge = (corners[0], corners[1], corners[0] + 18, corners[1] + 18)
        pen.rectangle(badge, fill=region_colour(number))
        pen.text((badge[0] + 5, badge[1] + 1), str(number + 1), fill="black", font=font(14))
