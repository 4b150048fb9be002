"""Predicted against measured V', drawn as a small SVG without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from skipqa.theory.bound import Sweep, tokens_needed

WIDTH, HEIGHT, MARGIN = 640, 400, 56


def draw(sweeps: Sequence[Sweep], epsilon: float, C: float | None = None) -> str:
    """Kept tokens over available tokens: the bound as a line, its range as a band, one dot a
    measured sweep."""
    measured = [(sweep.available, sweep.needed(epsilon)) for sweep in sweeps]
    most_x = max([576, *(x for x, _ in measured)]) * 1.08
    xs = [most_x * i / 60 for i in range(1, 61)]
    bounds = [tokens_needed(max(1, round(x)), epsilon, C) for x in xs]
    most_y = 1.15 * max([*(b.likely[1] for b in bounds), *(y for _, y in measured)])

    def place(x: float, y: float) -> str:
        across = MARGIN + (WIDTH - 2 * MARGIN) * x / most_x
        return f"{across:.1f},{HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * y / most_y:.1f}"

    line = " ".join(place(x, b.count) for x, b in zip(xs, bounds, strict=True))
    upper = [place(x, b.likely[1]) for x, b in zip(xs, bounds, strict=True)]
    lower = [place(x, b.likely[0]) for x, b in zip(xs, bounds, strict=True)]
    parts = [
        f'<polygon points="{" ".join(upper + lower[::-1])}" fill="#9ecae1" fill-opacity="0.5"/>',
        f'<polyline points="{line}" fill="none" stroke="#08519c" stroke-width="2"/>',
        *_axis(most_x, most_y, place),
    ]
    for x, y in measured:
        cx, cy = place(x, y).split(",")
        parts.append(f'<circle cx="{cx}" cy="{cy}" r="5" fill="#cb181d"/>')
        parts.append(f'<text x="{float(cx) + 8:.1f}" y="{cy}">{y} of {x}</text>')
    title = f"V' for at most {epsilon:g} lost: bound (line), its range (band), measured (dots)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{MARGIN}" y="24">{title}</text>{"".join(parts)}</svg>\n'
    )


def _axis(most_x: float, most_y: float, place: Callable[[float, float], str]) -> list[str]:
    origin, right, top = place(0, 0), place(most_x, 0), place(0, most_y)
    parts = [f'<polyline points="{top} {origin} {right}" fill="none" stroke="black"/>']
    for most, along_x in ((most_x, True), (most_y, False)):
        step = 10 ** math.floor(math.log10(most / 2))
        step *= 5 if most / step > 25 else 2 if most / step > 8 else 1
        for i in range(1, int(most / step) + 1):
            x, y = place(i * step, 0).split(",") if along_x else place(0, i * step).split(",")
            dx, dy, anchor = (0, 16, "middle") if along_x else (-6, 4, "end")
            parts.append(
                f'<text x="{float(x) + dx:.1f}" y="{float(y) + dy:.1f}" '
                f'text-anchor="{anchor}">{i * step:g}</text>'
            )
    x, y = right.split(",")
    parts.append(f'<text x="{x}" y="{float(y) + 34:.1f}" text-anchor="end">visual tokens V</text>')
    return parts
