"""read_text: read the text of kept tokens that look like it, where the question asks for text.

Enters: kept tokens with their likeness to text, the image. Leaves: lines with their boxes and the
region each belongs to; they join the region's query (`retrieve.py`) and what the decoder reads
(`written.py`). Text of which no token was kept is not read: the engine sees crops of the image's
own pixels around kept tokens alone. Neighbours are joined into one crop, with a margin, so that no
word is cut.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from PIL import Image

from skipqa.backbones import text_reader
from skipqa.backbones.text_reader import CELL, EXTRA, TextReader
from skipqa.config import ReadTextConfig
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Box, KeptTokens, ReadText, Region, TextLine

Pixels = tuple[int, int, int, int]  # left, top, right, bottom


class ReadTextInImage:
    """Without a reader nothing is read, and the trace says what is missing."""

    def __init__(self, config: ReadTextConfig, reader: TextReader | None) -> None:
        self.config, self.reader = config, reader

    def __call__(self, state: State, record: StageRecord) -> State:
        record.kept, record.dropped = 0, len(state.regions)
        if self.reader is None:
            record.why = "text is not read"
            if not text_reader.installed():
                record.why += f": pip install 'skipqa[{EXTRA}]' would"
            return state.add(read_text=ReadText())
        if state.kept.text_likeness is None:
            record.why = "the question asks for no text"
            return state.add(read_text=ReadText())
        grid, cells = state.kept.tokens.grid, text_cells(state.kept, self.config.min_likeness)
        crops = crops_around(cells, grid, state.image.size, self.config.margin)
        if not crops:
            record.why = "nothing that was kept looks like text"
            return state.add(read_text=ReadText())
        return self.read(state, crops, record)

    def read(self, state: State, crops: Sequence[Pixels], record: StageRecord) -> State:
        assert self.reader is not None
        image, lines = state.image, list[TextLine]()
        for crop in crops:
            found, flops = self.reader(image.crop(crop))
            record.flops += flops
            lines += (in_image(line, crop, image.size) for line in found)
        placed = [assigned(line, state.regions, state.kept.tokens.grid) for line in lines]
        sure = tuple(line for line in placed if line.score >= self.config.min_score)
        with_text = {line.region for line in sure}
        record.kept, record.dropped = len(with_text), len(state.regions) - len(with_text)
        said = ", ".join(repr(line.text) for line in sure) or "nothing"
        area = sum((c[2] - c[0]) * (c[3] - c[1]) for c in crops) / (image.width * image.height)
        record.why = f"{said} in {len(crops)} crops, {area:.0%} of the image"
        boxes = tuple(_fractions(crop, image.size) for crop in crops)
        state = state.add(read_text=ReadText(sure, boxes))
        if sure and state.question.asks_what_is_written:
            record.why += "; that is the answer, so nothing is looked up"
            state = state.add(budget=dataclasses.replace(state.budget, passages=0))
        return state


def build(parts: Parts) -> ReadTextInImage:
    config = parts.config.read_text
    return ReadTextInImage(config, text_reader.shared() if config.enabled else None)


def text_cells(kept: KeptTokens, min_likeness: float) -> list[int]:
    """Grid positions of the kept tokens that look like text, and of those next to them that do,
    kept or not: a word goes on where the budget ended."""
    assert kept.text_likeness is not None
    grid = kept.tokens.grid
    open_cells = set((kept.text_likeness >= min_likeness).nonzero()[:, 0].tolist())
    waiting = sorted(open_cells.intersection(kept.positions.tolist()))
    found = set(waiting)
    while waiting:
        column, row = waiting[-1] % grid, waiting.pop() // grid
        for down in range(max(0, row - 1), min(grid, row + 2)):
            for across in range(max(0, column - 1), min(grid, column + 2)):
                cell = down * grid + across
                if cell in open_cells and cell not in found:
                    found.add(cell)
                    waiting.append(cell)
    return sorted(found)


def crops_around(
    cells: Iterable[int], grid: int, size: tuple[int, int], margin: float
) -> list[Pixels]:
    """Rectangles of the image that hold all of these cells with a margin, in fractions of a cell,
    and do not touch; from the top left. Their sides are multiples of the detector's stride where
    the image has the room."""
    width, height = size
    found: list[Pixels] = []
    for cell in sorted(cells):
        column, row = cell % grid, cell // grid
        box = (
            max(0, int((column - margin) / grid * width)),
            max(0, int((row - margin) / grid * height)),
            min(width, math.ceil((column + 1 + margin) / grid * width)),
            min(height, math.ceil((row + 1 + margin) / grid * height)),
        )
        found = _joined([*found, box])
    joined: list[Pixels] = []
    while joined != found:  # widened boxes may touch others, and joined ones have to be widened
        joined = found
        found = _joined([_aligned(box, size) for box in joined])
    return sorted(found, key=lambda box: (box[1], box[0]))


def _joined(boxes: Sequence[Pixels]) -> list[Pixels]:
    """Boxes that touch become one, until none do."""
    apart: list[Pixels] = []
    for box in boxes:
        touching = [other for other in apart if _touch(box, other)]
        while touching:
            apart = [other for other in apart if other not in touching]
            both = (box, *touching)
            box = (
                min(b[0] for b in both),
                min(b[1] for b in both),
                max(b[2] for b in both),
                max(b[3] for b in both),
            )
            touching = [other for other in apart if _touch(box, other)]
        apart.append(box)
    return apart


def _touch(one: Pixels, other: Pixels) -> bool:
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]


def _aligned(box: Pixels, size: tuple[int, int]) -> Pixels:
    """Widened to multiples of the stride, inside the image."""
    left, right = _widened(box[0], box[2], size[0])
    top, bottom = _widened(box[1], box[3], size[1])
    return left, top, right, bottom


def _widened(start: int, end: int, most: int) -> tuple[int, int]:
    length = min(most, -(-(end - start) // CELL) * CELL)
    start = min(max(0, (start + end - length) // 2), most - length)
    return start, start + length


def in_image(line: TextLine, crop: Pixels, size: tuple[int, int]) -> TextLine:
    """A line of a crop, with its box in the whole image."""
    left, top, right, bottom = line.box
    across, down = crop[2] - crop[0], crop[3] - crop[1]
    box = (
        (crop[0] + left * across) / size[0],
        (crop[1] + top * down) / size[1],
        (crop[0] + right * across) / size[0],
        (crop[1] + bottom * down) / size[1],
    )
    return dataclasses.replace(line, box=box)


def assigned(line: TextLine, regions: Sequence[Region], grid: int) -> TextLine:
    """To the region that has the token nearest to its middle; ties go to the most salient."""
    x, y = (line.box[0] + line.box[2]) / 2 * grid, (line.box[1] + line.box[3]) / 2 * grid

    def distance(region: Region) -> float:
        places = ((p % grid + 0.5 - x, p // grid + 0.5 - y) for p in region.members)
        return min((dx * dx + dy * dy for dx, dy in places), default=float("inf"))

    best = min(range(len(regions)), key=lambda r: distance(regions[r]), default=None)
    return dataclasses.replace(line, region=best)


def whole(image: Image.Image) -> Pixels:
    return 0, 0, image.width, image.height


def _fractions(crop: Pixels, size: tuple[int, int]) -> Box:
    return crop[0] / size[0], crop[1] / size[1], crop[2] / size[0], crop[3] / size[1]
