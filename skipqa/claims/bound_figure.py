"""The bound's V' and the measured V' in one figure.

Enters: sweeps over kept tokens. Leaves: a figure. It runs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from skipqa.claims.bound import Sweep, tokens_needed
from skipqa.figures import Labels, Mark, Series, line_chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 60  # of the curve


def draw(sweeps: Sequence[Sweep], epsilon: float, C: float | None = None) -> Figure:
    """Kept over available tokens: the bound as a line, its likely range as a band, and one mark
    per measured sweep."""
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
    labels = Labels(
        f"Tokens kept to lose at most {epsilon:g}",
        "the band is the bound's likely range",
        "available tokens V",
        "kept tokens V'",
    )
    return line_chart(series, labels)
