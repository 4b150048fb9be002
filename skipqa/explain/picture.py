"""The trace as one PNG: photo and regions on the left, passages and costs on the right.

Passages appear by title and id; their full text is in the page (`page.py`).
"""

from __future__ import annotations

import textwrap

from PIL import Image, ImageDraw

from skipqa.answer import Answer
from skipqa.backbones.concepts import Concepts
from skipqa.explain.overlay import font, overlay, region_colour

PHOTO_WIDTH, SIDE_WIDTH, MARGIN = 560, 620, 20
INK, GREY, LINE = (30, 30, 30), (120, 120, 120), (215, 215, 215)
BAR = (0, 114, 178)


class _Column:
    """A cursor that writes down a column."""

    def __init__(self, pen: ImageDraw.ImageDraw, left: int, top: int, width: int) -> None:
        self.pen, self.left, self.top, self.width = pen, left, top, width

    def heading(self, text: str) -> None:
        self.top += 10
        self.pen.text((self.left, self.top), text, fill=GREY, font=font(14))
        self.top += 22
        self.pen.line((self.left, self.top, self.left + self.width, self.top), fill=LINE)
        self.top += 6

    def text(self, text: str, size: int, colour: tuple[int, int, int] = INK) -> None:
        for line in textwrap.wrap(text, int(self.width / (size * 0.52))) or [""]:
            self.pen.text((self.left, self.top), line, fill=colour, font=font(size))
            self.top += round(size * 1.35)


def draw(answer: Answer, concepts: Concepts) -> Image.Image:
    photo = overlay(answer.state, PHOTO_WIDTH)
    size = (PHOTO_WIDTH + SIDE_WIDTH + 3 * MARGIN, photo.height + 3_000)
    canvas = Image.new("RGB", size, "white")
    canvas.paste(photo, (MARGIN, MARGIN))
    pen = ImageDraw.Draw(canvas)
    below = _Column(pen, MARGIN, MARGIN + photo.height, PHOTO_WIDTH)
    _region_legend(below, answer, concepts)
    side = _Column(pen, PHOTO_WIDTH + 2 * MARGIN, MARGIN, SIDE_WIDTH)
    side.text(answer.state.text, 22)
    side.text(answer.text, 20, BAR)
    side.text(answer.certainty, 14, GREY)
    _passages(side, answer)
    _costs(side, answer)
    return canvas.crop((0, 0, size[0], max(below.top, side.top) + MARGIN))


def _region_legend(column: _Column, answer: Answer, concepts: Concepts) -> None:
    if "regions" not in answer.state:
        column.heading(
            f"{answer.num_tokens} tokens seen; the drafter answered, nothing was looked up"
        )
        return
    kept, total = answer.trace["prune"].kept, answer.num_tokens
    regions = answer.state.regions
    column.heading(f"{kept} of {total} tokens kept, in {len(regions)} regions")
    for number, region in enumerate(regions):
        x = column.left + (number % 2) * (PHOTO_WIDTH // 2)
        concept, prob = region.concepts[0]
        column.pen.rectangle(
            (x, column.top + 2, x + 12, column.top + 14), fill=region_colour(number)
        )
        label = f"{number + 1}  {concepts[concept].name} {prob:.2f}  ({len(region.members)} tokens)"
        if said := answer.state.text_read.in_region(number):
            label = f"{number + 1}  “{' '.join(said)}”"
        column.pen.text((x + 20, column.top), label, fill=INK, font=font(13))
        if number % 2:
            column.top += 20
    column.top += 20


def _passages(column: _Column, answer: Answer) -> None:
    if "verified" not in answer.state:
        return
    retrieved, verified = answer.state.retrieved, answer.state.verified
    column.heading(
        f"{retrieved.num_hits} passages found, {retrieved.num_unique} different, "
        f"{len(verified.passages)} kept"
    )
    rows = [(p, s, True) for p, s in zip(verified.passages, verified.scores, strict=True)]
    rows += [(p, s, False) for p, s in verified.rejected]
    for found, score, kept in rows:
        y = column.top
        column.pen.rectangle(
            (column.left, y + 2, column.left + 12, y + 14), fill=region_colour(found.region)
        )
        title = textwrap.shorten(found.passage.title, 52, placeholder="…")
        colour = INK if kept else GREY
        column.pen.text((column.left + 20, y), title, fill=colour, font=font(15))
        verdict = f"{score:.2f} {'kept' if kept else 'rejected'}"
        column.pen.text((column.left + 490, y), verdict, fill=colour, font=font(14))
        column.pen.text((column.left + 20, y + 18), found.passage.id, fill=GREY, font=font(11))
        column.top += 38


def _costs(column: _Column, answer: Answer) -> None:
    trace = answer.trace
    column.heading(f"{trace.latency_ms:.0f} ms, {trace.flops / 1e9:.1f} GFLOPs")
    longest = max(stage.ms for stage in trace.stages) or 1.0
    for stage in trace.stages:
        y = column.top
        column.pen.text((column.left, y), stage.name, fill=INK, font=font(13))
        length = round(160 * stage.ms / longest)
        column.pen.rectangle((column.left + 75, y + 3, column.left + 76 + length, y + 13), fill=BAR)
        note = f"{stage.ms:.0f} ms"
        if stage.flops:
            note += f", {stage.flops / 1e9:.2f} GFLOPs"
        column.pen.text((column.left + 85 + length, y), note, fill=INK, font=font(12))
        why = textwrap.shorten(stage.why, 38, placeholder="…")
        column.pen.text((column.left + 390, y + 1), why, fill=GREY, font=font(11))
        column.top += 20
