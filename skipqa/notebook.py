"""An answer as a fragment of HTML for a notebook: what was asked, looked at, read and spent.

Enters: the outline of an answer, as `skipqa serve` gives it, and the photo as a data URI. Leaves:
one element that stands alone: inline styles, no script, nothing to load. Its colours are those of
the page around it, so that light and dark notebooks can both be read. Outlines come over the
network and passages from anywhere, so every text is escaped, no text is ever part of an attribute,
and a value of the wrong type is left out. It knows nothing of pipelines or servers and imports
nothing of this package, so that whoever has an answer can show it.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

Outline = Mapping[str, Any]

PHOTO_WIDTH, MAX_HEIGHT = 720, 1_200  # of a thumbnail; the width is also that of the drawing
# Of regions, also in the other pictures of a trace: Okabe and Ito's palette, which colour-blind
# eyes can tell apart too
COLOURS = (
    *("#e69f00", "#56b4e9", "#009e73", "#f0e442"),
    *("#0072b2", "#d55e00", "#cc79a7", "#999999"),
)
DIMMED = 0.35
LARGEST_GRID = 256
LARGEST_SIDE = 100_000  # of a photo, in pixels
LARGEST_COUNT = 1_000_000_000
# Pictures that a browser only draws: an SVG could load others
PICTURE = re.compile(r"data:image/(?:jpeg|png|gif|webp|avif|bmp);base64,[A-Za-z0-9+/]+={0,2}")

LINE = "border-top:1px solid rgba(128,128,128,.4)"
SOFT = "opacity:.75"
CELL = f"text-align:left;vertical-align:top;padding:.3em .6em;{LINE}"
NARROW = f"{CELL};width:1.5em"
TABLE = "border-collapse:collapse;width:100%;margin:.3em 0 1em;font-size:inherit"
CHIP = (
    "display:inline-block;min-width:1.3em;text-align:center;border-radius:3px;color:#000;"
    "font-size:.85em"
)


def html(outline: Outline, photo: str | None) -> str:
    """The answer of `outline`; without a photo, or with one that is no picture, none is drawn."""
    parts = [_heading(outline), _picture(outline, photo), _regions(outline)]
    parts += [_passages(outline), _costs(outline)]
    # Notebooks set $…$ as formulas, also inside HTML; prices in passages are none.
    return (
        '<div class="tex2jax_ignore mathjax_ignore" style="max-width:60em;line-height:1.5;'
        f'color:inherit">{"".join(parts)}</div>'
    )


def thumbnail(image: Image.Image) -> str:
    """The photo for `html`: small enough to be kept in a notebook's file."""
    small, file = image.convert("RGB"), io.BytesIO()
    small.thumbnail((PHOTO_WIDTH, MAX_HEIGHT))
    small.save(file, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def _heading(outline: Outline) -> str:
    draft = _mapping(outline.get("draft"))
    about = [_text(outline.get("certainty"))]
    if asked_as := _text(outline.get("asked_as")):
        about.append(f"asked as “{asked_as}”")
    if outline.get("route") == "draft":
        about.append("answered by the drafter, nothing was looked up")
    elif _text(draft.get("answer")):
        confidence, threshold = _number(draft.get("confidence")), _number(draft.get("threshold"))
        about.append(
            f"the draft was “{_text(draft.get('answer'))}”, {confidence:.0%} sure where "
            f"{threshold:.0%} is required"
        )
    return (
        f'<div style="{SOFT}">{_text(outline.get("question"))}</div>'
        f'<div style="font-size:1.35em;font-weight:600">{_text(outline.get("answer"))}</div>'
        f'<div style="{SOFT}">{"; ".join(filter(None, about))}</div>'
    )


def _picture(outline: Outline, photo: str | None) -> str:
    """The photo, dropped patches dimmed, kept ones in the colour of their region, regions boxed."""
    size = _mapping(outline.get("image"))
    pixels = [_number(size.get(side)) for side in ("width", "height")]
    drawable = all(1 <= side <= LARGEST_SIDE for side in pixels)
    if photo is None or not drawable or not PICTURE.fullmatch(photo):
        return ""
    width, height = float(PHOTO_WIDTH), PHOTO_WIDTH * pixels[1] / pixels[0]
    drawn = [
        f'<image href="{photo}" width="{width:.2f}" height="{height:.2f}" '
        'preserveAspectRatio="none"/>',
        *_patches(outline, width, height),
        *_boxes(outline, width, height),
    ]
    return (
        f'<svg viewBox="0 0 {width:.2f} {height:.2f}" role="img" '
        'aria-label="The photo: kept patches bright, dropped ones dark, regions boxed" '
        'style="display:block;width:100%;max-width:32em;max-height:32em;margin:.6em 0">'
        f"{''.join(drawn)}</svg>"
    )


def _patches(outline: Outline, width: float, height: float) -> Iterable[str]:
    tokens = _mapping(outline.get("tokens"))
    grid = _count(tokens.get("grid")) or 0
    if not 1 <= grid <= LARGEST_GRID:
        return
    kept = _positions(tokens.get("kept"), grid)
    regions = [_positions(r.get("tokens"), grid) for r in _mappings(outline.get("regions"))]
    if not kept and not any(regions):  # nothing was dropped either: the drafter saw all of it
        return
    dropped = set(range(grid * grid)).difference(kept, *regions)
    cell = (width / grid, height / grid)
    yield _filled(dropped, grid, cell, f'fill="#000" fill-opacity="{1 - DIMMED:.2f}"')
    for number, members in enumerate(regions):
        yield _filled(members, grid, cell, f'fill="{_colour(number)}" fill-opacity="0.2"')


def _filled(positions: set[int], grid: int, cell: tuple[float, float], paint: str) -> str:
    """Patches as one shape; those next to each other in a row are one rectangle of it."""
    width, height = cell
    shape = []
    for position in sorted(positions):
        if position % grid and position - 1 in positions:
            continue
        end = position + 1
        while end in positions and end % grid:
            end += 1
        left, top, across = position % grid * width, position // grid * height, end - position
        shape.append(f"M{left:.2f} {top:.2f}h{across * width:.2f}v{height:.2f}H{left:.2f}z")
    return f'<path d="{"".join(shape)}" {paint} shape-rendering="crispEdges"/>' if shape else ""


def _boxes(outline: Outline, width: float, height: float) -> Iterable[str]:
    regions = list(enumerate(_mappings(outline.get("regions"))))
    for number, region in reversed(regions):  # the most salient on top
        box = region.get("box")
        if not isinstance(box, Sequence) or isinstance(box, str) or len(box) != 4:
            continue
        left, top, right, bottom = (min(1.0, max(0.0, _number(side))) for side in box)
        x, y = left * width, top * height
        across, down = max(0.0, right * width - x), max(0.0, bottom * height - y)
        colour = _colour(number)
        yield (
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{across:.2f}" height="{down:.2f}" fill="none" '
            f'stroke="{colour}" stroke-width="3"/>'
            f'<rect x="{x:.2f}" y="{y:.2f}" width="24" height="24" fill="{colour}"/>'
            f'<text x="{x + 12:.2f}" y="{y + 18:.2f}" text-anchor="middle" font-size="17" '
            f'fill="#000">{number + 1}</text>'
        )


def _regions(outline: Outline) -> str:
    items = []
    for number, region in enumerate(_mappings(outline.get("regions"))):
        names = ", ".join(
            f"{_text(concept.get('name'))} {_number(concept.get('prob')):.2f}"
            for concept in _mappings(region.get("concepts"))[:3]
        )
        read = [t for t in _mappings(outline.get("text")) if t.get("region") == number]
        said = " ".join(f"“{_text(line.get('text'))}”" for line in read)
        items.append(f"<div>{_chip(number)} {names} {said}</div>")
    return f'<div style="columns:2;margin:.3em 0 1em">{"".join(items)}</div>' if items else ""


def _passages(outline: Outline) -> str:
    passages = _mappings(outline.get("passages"))
    kept = [_passage(p) for p in passages if p.get("verdict") == "kept"]
    rejected = [_passage(p) for p in passages if p.get("verdict") != "kept"]
    shown = f'<table style="{TABLE}">{"".join(kept)}</table>' if kept else ""
    if rejected:
        # open where nothing was kept: then this is all there is to see
        unfolded = "" if kept else " open"
        shown += (
            f"<details{unfolded}><summary>{len(rejected)} rejected</summary>"
            f'<table style="{TABLE}">{"".join(rejected)}</table></details>'
        )
    return shown


def _passage(passage: Outline) -> str:
    region, number = _count(passage.get("region")), _count(passage.get("number"))
    chip = "" if region is None else _chip(region)
    kept = passage.get("verdict") == "kept"
    verdict = f"{'kept' if kept else 'rejected'}, {_number(passage.get('verification')):.2f}"
    if passage.get("cited") is True:
        verdict += ", read"
    origin = _mapping(passage.get("origin"))  # of what no index of the library holds
    told = (_text(origin.get("address")), _text(origin.get("asked")))
    source = ", ".join(filter(None, (_text(passage.get("id")), _text(passage.get("index")), *told)))
    found = f"retrieval score {_number(passage.get('score')):.2f}"
    if kept:
        found += f", {_number(passage.get('attention')):.0%} of the attention"
    return (
        f'<tr><td style="{NARROW}">{"" if number is None else number}</td>'
        f'<td style="{NARROW}">{chip}</td>'
        f'<td style="{CELL}"><b>{_text(passage.get("title"))}</b> '
        f'<span style="{SOFT}">{verdict}</span>'
        f"<div>{_text(passage.get('text'))}</div>"
        f'<div style="{SOFT};font-size:.9em">{_text(passage.get("reason"))}</div>'
        f'<div style="{SOFT};font-size:.9em">{source}; {found}</div></td></tr>'
    )


def _costs(outline: Outline) -> str:
    stages = _mappings(outline.get("stages"))
    longest = max((_number(stage.get("ms")) for stage in stages), default=0.0)
    rows = "".join(_stage(stage, longest) for stage in stages)
    total = f"{_number(outline.get('latency_ms')):.0f} ms, {_gflops(outline)} GFLOPs"
    dense = _mapping(outline.get("dense"))
    if _number(dense.get("flops")) > 0:
        total += f"; the dense baseline: {_gflops(dense)} GFLOPs"
    return f'<details><summary>{total}</summary><table style="{TABLE}">{rows}</table></details>'


def _stage(stage: Outline, longest: float) -> str:
    ms = _number(stage.get("ms"))
    fraction = min(1.0, max(0.0, ms / longest)) if longest > 0 else 0.0
    counts = ", ".join(
        f"{count} {what}"
        for what in ("kept", "dropped")
        if (count := _count(stage.get(what))) is not None
    )
    return (
        f'<tr><td style="{CELL}">{_text(stage.get("name"))}</td>'
        f'<td style="{CELL};white-space:nowrap"><span style="display:inline-block;height:.7em;'
        f'background:#0072b2;margin-right:.4em;width:{6 * fraction:.2f}em"></span>{ms:.0f} ms</td>'
        f'<td style="{CELL};white-space:nowrap">{_gflops(stage)} GFLOPs</td>'
        f'<td style="{CELL}">{counts}</td>'
        f'<td style="{CELL};{SOFT}">{_text(stage.get("why"))}</td></tr>'
    )


def _chip(region: int) -> str:
    return f'<span style="{CHIP};background:{_colour(region)}">{region + 1}</span>'


def _colour(region: int) -> str:
    return COLOURS[region % len(COLOURS)]


def _gflops(spent: Outline) -> str:
    return f"{_number(spent.get('flops')) / 1e9:.2f}"


def _text(value: Any) -> str:
    return escape(value) if isinstance(value, str) else ""


def _number(value: Any) -> float:
    """0 for what is no number, so that nothing else can be written in its place."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        number = float(value)
    except OverflowError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= LARGEST_COUNT else None


def _positions(value: Any, grid: int) -> set[int]:
    values = value if isinstance(value, list | tuple) else ()
    return {one for one in values if type(one) is int and 0 <= one < grid * grid}


def _mapping(value: Any) -> Outline:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Outline]:
    values = value if isinstance(value, list | tuple) else ()
    return [one for one in values if isinstance(one, Mapping)]
