"""Axes, ticks, the frontier and the bars."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.plot.canvas import Canvas, Circle, Line, Polygon, Text
from skipqa.plot.chart import Axis, Mark, Series, linear_ticks, plot, stacked_bars


def texts(canvas: Canvas) -> list[str]:
    return [shape.text for shape in canvas.shapes if isinstance(shape, Text)]


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_round_and_inside(low: float, span: float) -> None:
    high = low + span
    ticks = linear_ticks(low, high)
    assert 2 <= len(ticks) <= 13
    slack = 1e-6 * high
    assert all(low - slack <= tick <= high + slack for tick in ticks)


@pytest.mark.parametrize("low", [0.03, 0.7, 25.0])
@pytest.mark.parametrize("factor", [1.6, 4.0, 30.0, 2_000.0])
def test_logarithmic_ticks_are_inside_and_enough_to_read(low: float, factor: float) -> None:
    axis = Axis(low, low * factor, 0, 100, log=True)
    ticks = axis.ticks()
    assert len(ticks) >= 2 or factor < 2
    assert all(0 <= axis(tick) <= 100 for tick in ticks)
    assert axis(low * math.sqrt(factor)) == pytest.approx(50)


def test_a_plot_names_its_series_highest_first() -> None:
    low, high = Series("low", [Mark(1, 10)]), Series("high", [Mark(2, 20, 15, 25)])
    shown = texts(plot([low, high], "title", "note", "x", "y"))
    assert shown.index("high") < shown.index("low")
    assert {"title", "note", "x", "y"} <= set(shown)


def test_a_line_has_a_band_and_a_point_a_bar() -> None:
    point = plot([Series("one", [Mark(1, 2, 1, 3)])], "", "", "", "")
    line = plot([Series("two", [Mark(1, 2, 1, 3), Mark(2, 3, 2, 4)])], "", "", "", "")
    assert not [shape for shape in point.shapes if isinstance(shape, Polygon)]
    assert [s.opacity < 1 for s in line.shapes if isinstance(s, Polygon)] == [True]


def test_the_frontier_passes_only_what_nothing_beats() -> None:
    marks = [Mark(1, 10), Mark(2, 9), Mark(3, 30), Mark(4, 30), Mark(5, 31)]
    series = [Series(str(i), [mark]) for i, mark in enumerate(marks)]
    canvas = plot(series, "", "", "", "", frontier=True)
    (frontier,) = [s for s in canvas.shapes if isinstance(s, Line) and s.width == 6]
    circles = [s.centre for s in canvas.shapes if isinstance(s, Circle)]
    assert len(frontier.points) == 3
    assert frontier.points[0] == circles[0]


def test_bars_are_as_long_as_their_parts_and_marks_stay_on_the_sheet() -> None:
    rows = {"long": {"a": 3.0, "b": 1.0}, "short": {"a": 1.0, "b": 1.0}}
    canvas = stacked_bars(rows, "", "", "ms", {"long": "4 ms", "short": "2 ms"})
    boxes = [s.points for s in canvas.shapes if isinstance(s, Polygon)][2:]  # after the legend
    widths = [points[1][0] - points[0][0] for points in boxes]
    assert widths[0] == pytest.approx(3 * widths[1])
    assert sum(widths[:2]) == pytest.approx(2 * sum(widths[2:]))
    assert all(0 <= x <= canvas.width for points in boxes for x, _ in points)
    assert {"long", "4 ms", "a", "b"} <= set(texts(canvas))
