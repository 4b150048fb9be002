"""Shapes on a white sheet, written as SVG or drawn as PNG: the same sheet twice.

Lengths are SVG pixels from the top left; colours are `#rrggbb`. It knows nothing of data,
scales or axes (`chart.py` does).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]
MARKERS = ("circle", "square", "triangle", "diamond", "pentagon", "star")

INK, GREY, FAINT = "#1f2328", "#656d76", "#d8dee4"
# Okabe and Ito's palette without its yellow, which white swallows; then three darker ones
PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
    *("#5d4a8a", "#8c564b", "#7f7f7f"),
)
PNG_SCALE = 2
_SUPERSAMPLED = 2  # drawn this much larger still, then averaged


@dataclass(frozen=True, slots=True)
class Line:
    points: Sequence[Point]
    colour: str
    width: float
    dashed: bool


@dataclass(frozen=True, slots=True)
class Polygon:
    points: Sequence[Point]
    colour: str
    opacity: float


@dataclass(frozen=True, slots=True)
class Circle:
    centre: Point
    radius: float
    colour: str


@dataclass(frozen=True, slots=True)
class Text:
    at: Point  # on the baseline
    text: str
    size: float
    colour: str
    anchor: Anchor
    bold: bool


@dataclass(slots=True)
class Canvas:
    width: int
    height: int
    shapes: list[Line | Polygon | Circle | Text] = field(default_factory=list)

    def line(
        self, *points: Point, colour: str = INK, width: float = 1, dashed: bool = False
    ) -> None:
        self.shapes.append(Line(points, colour, width, dashed))

    def polygon(self, *points: Point, colour: str, opacity: float = 1) -> None:
        self.shapes.append(Polygon(points, colour, opacity))

    def box(self, left: float, top: float, width: float, height: float, colour: str) -> None:
        right, bottom = left + width, top + height
        self.polygon((left, top), (right, top), (right, bottom), (left, bottom), colour=colour)

    def marker(self, kind: str, at: Point, colour: str, radius: float = 4.5) -> None:
        """One of MARKERS, all of about the same area."""
        if kind == "circle":
            self.shapes.append(Circle(at, radius, colour))
            return
        if kind == "star":
            corners = [(i * math.pi / 5, 1.45 if i % 2 == 0 else 0.6) for i in range(10)]
        else:
            sides, size, turn = {
                "square": (4, 1.25, math.pi / 4),
                "triangle": (3, 1.45, 0.0),
                "diamond": (4, 1.35, 0.0),
                "pentagon": (5, 1.2, 0.0),
            }[kind]
            corners = [(turn + 2 * math.pi * i / sides, size) for i in range(sides)]
        points = [
            (at[0] + radius * size * math.sin(angle), at[1] - radius * size * math.cos(angle))
            for angle, size in corners
        ]
        self.polygon(*points, colour=colour)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 12,
        colour: str = INK,
        anchor: Anchor = "start",
        bold: bool = False,
    ) -> None:
        self.shapes.append(Text((x, y), text, size, colour, anchor, bold))

    def svg(self) -> str:
        body = "\n".join(_as_svg(shape) for shape in self.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" '
            f'font-family="system-ui, -apple-system, Helvetica, Arial, sans-serif">\n'
            f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
        )

    def png(self) -> Image.Image:
        scale = PNG_SCALE * _SUPERSAMPLED
        sheet = Image.new("RGB", (self.width * scale, self.height * scale), "white")
        pen = ImageDraw.Draw(sheet, "RGBA")  # this mode blends colours that are not opaque
        for shape in self.shapes:
            _draw(pen, shape, scale)
        return sheet.resize((self.width * PNG_SCALE, self.height * PNG_SCALE), Image.Resampling.BOX)

    def save(self, stem: Path) -> None:
        """`stem.svg` and `stem.png`."""
        stem.with_suffix(".svg").write_text(self.svg(), encoding="utf-8")
        self.png().save(stem.with_suffix(".png"), optimize=True)


def text_width(text: str, size: float) -> float:
    """About what a sans-serif face needs; both writers use other faces than this."""
    return 1.04 * _font(100).getlength(text) * size / 100


@lru_cache(maxsize=32)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _numbers(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _as_svg(shape: Line | Polygon | Circle | Text) -> str:
    match shape:
        case Line():
            dash = ' stroke-dasharray="5 4"' if shape.dashed else ""
            return (
                f'<polyline points="{_numbers(shape.points)}" fill="none" stroke="{shape.colour}" '
                f'stroke-width="{shape.width:g}" stroke-linejoin="round"{dash}/>'
            )
        case Polygon():
            opacity = "" if shape.opacity == 1 else f' fill-opacity="{shape.opacity:g}"'
            points = _numbers(shape.points)
            return f'<polygon points="{points}" fill="{shape.colour}"{opacity}/>'
        case Circle():
            (x, y), radius = shape.centre, shape.radius
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{shape.colour}"/>'
        case Text():
            x, y = shape.at
            bold = ' font-weight="600"' if shape.bold else ""
            anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
            return (
                f'<text x="{x:.1f}" y="{y:.1f}" font-size="{shape.size:g}" '
                f'fill="{shape.colour}"{anchor}{bold}>{escape(shape.text, quote=False)}</text>'
            )


def _draw(pen: ImageDraw.ImageDraw, shape: Line | Polygon | Circle | Text, scale: int) -> None:
    match shape:
        case Line():
            width = max(1, round(shape.width * scale))
            points = [(x * scale, y * scale) for x, y in shape.points]
            pieces = _dashes(points, 5 * scale, 4 * scale) if shape.dashed else [points]
            for piece in pieces:
                pen.line(piece, fill=shape.colour, width=width, joint="curve")
        case Polygon():
            points = [(x * scale, y * scale) for x, y in shape.points]
            pen.polygon(points, fill=f"{shape.colour}{round(255 * shape.opacity):02x}")
        case Circle():
            (x, y), r = shape.centre, shape.radius
            corners = tuple(scale * n for n in (x - r, y - r, x + r, y + r))
            pen.ellipse(corners, fill=shape.colour)
        case Text():
            x, y = shape.at
            anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
            pen.text(
                (x * scale, y * scale),
                shape.text,
                fill=shape.colour,
                font=_font(round(shape.size * scale)),
                anchor=anchor,
                stroke_width=scale // 4 if shape.bold else 0,  # the default face has no bold
            )


def _dashes(points: Sequence[Point], drawn: float, left_out: float) -> list[list[Point]]:
    """The line cut into dashes; each piece of it starts anew."""
    pieces = []
    for (x0, y0), (x1, y1) in pairwise(points):
        length = math.hypot(x1 - x0, y1 - y0)
        start = 0.0
        while start < length:
            ends = [t / length for t in (start, min(start + drawn, length))]
            pieces.append([(x0 + t * (x1 - x0), y0 + t * (y1 - y0)) for t in ends])
            start += drawn + left_out
    return pieces
