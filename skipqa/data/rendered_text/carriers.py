"""Things that carry text, each drawn flat: signs, shop fronts, jars, bottles, number plates, buses.

Enters: the lines to write, a typeface, a colour. Leaves: the drawing with its transparency, and
which part of it the text covers. How it gets into a photo is in `scene.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from PIL import Image, ImageDraw

from skipqa.data.rendered_text.fonts import Face

LETTER = 96  # pixels of a line's height while drawing; the photo has fewer
Colour = tuple[int, int, int]
COLOURS: dict[str, Colour] = {
    "red": (176, 24, 30),
    "blue": (20, 60, 150),
    "green": (16, 100, 50),
    "black": (24, 24, 26),
    "white": (244, 244, 240),
    "yellow": (250, 205, 30),
    "orange": (238, 122, 20),
    "brown": (98, 58, 30),
}
LIGHT = ("white", "yellow", "orange")
INK: Colour = (20, 20, 22)
PAPER: Colour = (246, 242, 230)
AMBER: Colour = (255, 186, 40)


class Drawn(NamedTuple):
    picture: Image.Image  # RGBA
    text: tuple[int, int, int, int]  # left, top, right, bottom in pixels


Draw = Callable[[Sequence[str], Face, str, Random], Drawn]


def ink_on(colour: str) -> Colour:
    return INK if colour in LIGHT else (250, 250, 250)


def lettering(lines: Sequence[str], face: Face, ink: Colour) -> Image.Image:
    """The lines centred, as tight as they are."""
    font = face(LETTER)
    spacing = LETTER // 4
    text = "\n".join(lines)
    draw = ImageDraw.Draw(Image.new("RGBA", (1, 1)))
    left, top, right, bottom = draw.multiline_textbbox((0, 0), text, font=font, spacing=spacing)
    size = (round(right - left) + 1, round(bottom - top) + 1)
    picture = Image.new("RGBA", size, (*ink, 0))
    place = (-left, -top)
    ImageDraw.Draw(picture).multiline_text(
        place, text, fill=(*ink, 255), font=font, spacing=spacing, align="center"
    )
    return picture


def _board(lettered: Image.Image, pad: tuple[int, int]) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """A canvas with room around the letters."""
    size = (lettered.width + 2 * pad[0], lettered.height + 2 * pad[1])
    canvas = Image.new("RGBA", size, (0, 0, 0, 0))
    return canvas, ImageDraw.Draw(canvas)


def _covers(at: tuple[int, int], lettered: Image.Image) -> tuple[int, int, int, int]:
    return (*at, at[0] + lettered.width, at[1] + lettered.height)


def sign(lines: Sequence[str], face: Face, colour: str, random: Random) -> Drawn:
    """A board with an inner line; some stand on a post."""
    ink = ink_on(colour)
    letters = lettering(lines, face, ink)
    pad = LETTER // 2
    canvas, draw = _board(letters, (pad, pad))
    edge = (0, 0, canvas.width - 1, canvas.height - 1)
    draw.rounded_rectangle(edge, LETTER // 5, fill=COLOURS[colour])
    inner = (8, 8, canvas.width - 9, canvas.height - 9)
    draw.rounded_rectangle(inner, LETTER // 6, outline=ink, width=5)
    canvas.alpha_composite(letters, (pad, pad))
    if random.random() < 0.5:
        tall = Image.new("RGBA", (canvas.width, canvas.height + 2 * LETTER), (0, 0, 0, 0))
        middle = canvas.width // 2
        post = (middle - 12, canvas.height - 4, middle + 12, tall.height)
        ImageDraw.Draw(tall).rectangle(post, fill=(128, 130, 134))
        tall.alpha_composite(canvas)
        canvas = tall
    return Drawn(canvas, _covers((pad, pad), letters))


def shop(lines: Sequence[str], face: Face, colour: str, random: Random) -> Drawn:
    """A fascia above a striped awning."""
    letters = lettering(lines, face, ink_on(colour))
    pad = (LETTER, LETTER // 3)
    board, _ = _board(letters, pad)
    canvas = Image.new("RGBA", (board.width, board.height + LETTER), (0, 0, 0, 0))
    draw = ImageDraw.Draw(canvas)
    draw.rectangle((0, 0, canvas.width, board.height), fill=COLOURS[colour])
    width = canvas.width / 14
    for stripe in range(14):
        fill = COLOURS[colour] if stripe % 2 else PAPER
        box = (round(stripe * width), board.height, round((stripe + 1) * width), canvas.height - 1)
        draw.rectangle(box, fill=fill)
    canvas.alpha_composite(letters, pad)
    return Drawn(canvas, _covers(pad, letters))


def jar(lines: Sequence[str], face: Face, colour: str, random: Random) -> Drawn:
    """A jar with a lid and a paper label."""
    letters = lettering(lines, face, INK)
    pad = (LETTER // 2, LETTER // 3)
    side = letters.width + 2 * pad[0]
    label = letters.height + 2 * pad[1]
    around = LETTER // 3
    canvas = Image.new("RGBA", (side, label + 5 * around), (0, 0, 0, 0))
    draw = ImageDraw.Draw(canvas)
    lid = 2 * around
    draw.rounded_rectangle((side // 10, 0, side - side // 10, lid), 14, fill=(150, 150, 156))
    body = (0, lid - 8, side - 1, canvas.height - 1)
    draw.rounded_rectangle(body, LETTER // 2, fill=COLOURS[colour])
    top = lid + around
    draw.rectangle((0, top, side - 1, top + label), fill=PAPER)
    for line in (top + 6, top + label - 6):
        draw.line((0, line, side, line), fill=COLOURS[colour], width=4)
    at = (pad[0], top + pad[1])
    canvas.alpha_composite(letters, at)
    return Drawn(canvas, _covers(at, letters))


def bottle(lines: Sequence[str], face: Face, colour: str, random: Random) -> Drawn:
    """A bottle whose label is as wide as its body."""
    letters = lettering(lines, face, INK)
    pad = (LETTER // 3, LETTER // 2)
    side = letters.width + 2 * pad[0]
    label = letters.height + 2 * pad[1]
    shoulder, neck = round(0.45 * side), side // 3
    canvas = Image.new("RGBA", (side, 2 * shoulder + label + side // 3), (0, 0, 0, 0))
    draw = ImageDraw.Draw(canvas)
    glass = COLOURS[colour]
    middle = side // 2
    draw.rectangle((middle - neck // 2, 0, middle + neck // 2, shoulder), fill=glass)
    draw.rectangle((middle - neck // 2, 0, middle + neck // 2, neck // 3), fill=(60, 60, 60))
    draw.ellipse((0, shoulder - 10, side - 1, shoulder + side // 2), fill=glass)
    foot = (0, shoulder + side // 5, side - 1, canvas.height - 1)
    draw.rounded_rectangle(foot, LETTER // 4, fill=glass)
    top = 2 * shoulder
    draw.rectangle((0, top, side - 1, top + label), fill=PAPER)
    at = (pad[0], top + pad[1])
    canvas.alpha_composite(letters, at)
    return Drawn(canvas, _covers(at, letters))


def plate(lines: Sequence[str], face: Face, colour: str, random: Random) -> Drawn:
    """A number plate."""
    letters = lettering(lines, face, INK)
    pad = (LETTER // 3, LETTER // 4)
    canvas, draw = _board(letters, pad)
    edge = (0, 0, canvas.width - 1, canvas.height - 1)
    draw.rounded_rectangle(edge, LETTER // 6, fill=COLOURS[colour], outline=INK, width=7)
    canvas.alpha_composite(letters, pad)
    return Drawn(canvas, _covers(pad, letters))


def bus(lines: Sequence[str], face: Face, colour: str, random: Random) -> Drawn:
    """A bus from its side, with a lit display above the windows."""
    letters = lettering(lines, face, AMBER)
    pad = LETTER // 3
    display = (letters.width + 2 * pad, letters.height + 2 * pad)
    side = round(1.5 * display[0])
    window = round(1.1 * LETTER)
    body = display[1] + window + 2 * LETTER
    canvas = Image.new("RGBA", (side, body + LETTER // 2), (0, 0, 0, 0))
    draw = ImageDraw.Draw(canvas)
    draw.rounded_rectangle((0, 0, side - 1, body), LETTER // 3, fill=COLOURS[colour])
    at = ((side - display[0]) // 2, pad)
    draw.rectangle((*at, at[0] + display[0], at[1] + display[1]), fill=INK)
    panes, top = 5, display[1] + 2 * pad
    for pane in range(panes):
        left = round((pane + 0.12) * side / panes)
        right = round((pane + 0.88) * side / panes)
        draw.rounded_rectangle((left, top, right, top + window), 12, fill=(60, 76, 92))
    for middle in (round(0.2 * side), round(0.8 * side)):
        wheel = (middle - LETTER // 2, body - LETTER // 2, middle + LETTER // 2, body + LETTER // 2)
        draw.ellipse(wheel, fill=(30, 30, 32))
    text = (at[0] + pad, at[1] + pad)
    canvas.alpha_composite(letters, text)
    return Drawn(canvas, _covers(text, letters))


class Carrier(NamedTuple):
    draw: Draw
    noun: str  # as a question calls it
    colours: tuple[str, ...]


CARRIERS: Mapping[str, Carrier] = {
    "sign": Carrier(sign, "sign", tuple(COLOURS)),
    "shop": Carrier(shop, "shop front", ("red", "blue", "green", "black", "brown")),
    "jar": Carrier(jar, "jar", ("red", "orange", "yellow", "brown", "green")),
    "bottle": Carrier(bottle, "bottle", ("green", "brown", "blue", "red")),
    "plate": Carrier(plate, "number plate", ("white", "yellow")),
    "bus": Carrier(bus, "bus", ("red", "blue", "green", "yellow", "white")),
}
