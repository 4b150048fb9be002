"""Tables and numbers in Markdown.

Enters: cells and intervals. Leaves: text. It does not know where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from skipqa.evaluation.statistics import RESAMPLES, Comparison

ABSENT = "–"
SMALLEST_P = 2 / (RESAMPLES + 1)


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def bounds(interval: Mapping[str, float], factor: float, form: str) -> str:
    """`low to high` of an interval, each end times `factor`."""
    return f"{factor * interval['low']:{form}} to {factor * interval['high']:{form}}"


def percent(interval: Mapping[str, float]) -> str:
    """A mean between 0 and 1 with its interval, such as `37.3 (33 to 42)`."""
    return f"{100 * interval['mean']:.1f} ({bounds(interval, 100, '.0f')})"


def points(comparison: Comparison) -> str:
    """A difference of accuracies in percentage points, such as `+2.0 (-1.0 to +5.0)`."""
    low, high = 100 * comparison.low, 100 * comparison.high
    return f"{100 * comparison.difference:+.1f} ({low:+.1f} to {high:+.1f})"


def p_value(comparison: Comparison) -> str:
    smallest = comparison.p_value <= SMALLEST_P
    return f"≤ {SMALLEST_P:.4f}" if smallest else f"{comparison.p_value:.4f}"


def times(ratio: float) -> str:
    return f"{ratio:.2f}x" if np.isfinite(ratio) else ABSENT
