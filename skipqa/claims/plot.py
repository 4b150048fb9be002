"""Predicted against measured V', drawn as a small SVG."""

from __future__ import annotations

from collections.abc import Sequence

from skipqa.claims.bound import Sweep, tokens_needed
from skipqa.plot.chart import Mark, Series, plot

POINTS = 60  # of the curve


def draw(sweeps: Sequence[Sweep], epsilon: float, C: float | None = None) -> str:
    """Kept tokens over available tokens: the bound as a line, its range as a band, one mark a
    measured sweep."""
    most = round(1.08 * max([576, *(sweep.available for sweep in sweeps)]))
    curve = []
    for available in sorted({max(1, round(most * i / POINTS)) for i in range(1, POINTS + 1)}):
        bound = tokens_needed(available, epsilon, C)
        curve.append(Mark(available, bound.count, *bound.likely))
    measured = [(sweep.available, sweep.needed(epsilon)) for sweep in sweeps]
    series = [
        Series("the bound", curve, computed=True),
        *(Series(f"measured, {kept} of {V}", [Mark(V, kept)]) for V, kept in measured),
    ]
    title = f"Tokens kept to lose at most {epsilon:g}"
    return plot(series, title, "the band is the bound's likely range", "V, available", "V'").svg()
