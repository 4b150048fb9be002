"""Charts from plain numbers: points and lines over two axes, and stacked bars.

Enters: series with names, values and intervals. Leaves: a `Canvas`. It knows nothing of
what the numbers mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from skipqa.plot.canvas import FAINT, GREY, INK, MARKERS, PALETTE, Canvas, Point, text_width

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 78, 52
BAR, BAR_GAP = 24, 14
LABEL = 12  # font size of labels in the plot


@dataclass(frozen=True, slots=True)
class Mark:
    """A measured point; `low` and `high` are its interval, if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Marks under one name; more than one are joined by a line.

    `computed` ones are points of a curve rather than measurements and have no symbols.
    """

    name: str
    marks: Sequence[Mark]
    computed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """From values to pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(value)
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        if not self.log:
            return linear_ticks(self.low, self.high)
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
            found = [step * 10.0**d for d in decades for step in steps]
            found = [tick for tick in found if self.low <= tick <= self.high]
            if len(found) > 3:
                break
        return found


def linear_ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, some `about` of them."""
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= min((1, 2, 5, 10), key=lambda m: abs((high - low) / (m * step) - about))
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def plot(
    series: Sequence[Series],
    title: str,
    note: str,
    x_name: str,
    y_name: str,
    *,
    log_x: bool = False,
    frontier: bool = False,
    level: tuple[str, float] | None = None,
) -> Canvas:
    """Points and lines over two axes; the interval of a point is a bar, that of a line a band.

    `frontier` draws the line of the points that no other beats in both axes (less x, more y);
    `level` is a named horizontal line.
    """
    assert all(one.marks for one in series)
    names = [one.name for one in series] + ([] if level is None else [level[0]])
    longest = max(text_width(name, LABEL) for name in names)
    canvas = Canvas(round(WIDTH + longest), max(HEIGHT, TOP + 20 * len(names) + BOTTOM))
    _headings(canvas, title, note)
    marks = [mark for one in series for mark in one.marks]
    x = _x_axis([mark.x for mark in marks], log_x)
    y = _y_axis(marks, level, canvas.height - BOTTOM)
    _grid(canvas, x, y, x_name, y_name)
    if level is not None:
        at = y(level[1])
        canvas.line((x.start, at), (x.end, at), colour=GREY, dashed=True)
    if frontier:
        canvas.line(*_frontier(marks, x, y), colour=FAINT, width=6)
    for number, one in enumerate(series):
        _intervals(canvas, one, x, y, _colour(number))
    for number, one in enumerate(series):
        points = [(x(mark.x), y(mark.y)) for mark in sorted(one.marks, key=lambda m: m.x)]
        if len(points) > 1:
            canvas.line(*points, colour=_colour(number), width=2)
        for point in [] if one.computed else points:
            canvas.marker(_marker(number), point, _colour(number))
    _names(canvas, series, level, x.end + 20)
    return canvas


def stacked_bars(
    rows: Mapping[str, Mapping[str, float]],
    title: str,
    note: str,
    unit: str,
    totals: Mapping[str, str],
) -> Canvas:
    """A horizontal bar a row, its parts in the order in which they first appear."""
    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    name_width = min(220, max(text_width(name, LABEL) for name in rows) + 14)
    total_width = max(text_width(totals[name], LABEL) for name in rows) + 16
    legend = _legend_rows(parts)
    top = TOP + 20 * len(legend)
    canvas = Canvas(WIDTH, round(top + len(rows) * (BAR + BAR_GAP) + BOTTOM))
    _headings(canvas, title, note)
    colours = {part: PALETTE[i % len(PALETTE)] for i, part in enumerate(parts)}
    for line, shown in enumerate(legend):
        left = 16.0
        for part in shown:
            canvas.box(left, TOP - 12 + 20 * line, 11, 11, colours[part])
            canvas.text(left + 16, TOP - 2 + 20 * line, part, LABEL)
            left += 16 + text_width(part, LABEL) + 18
    most = max(sum(row.values()) for row in rows.values()) or 1.0
    bottom = canvas.height - BOTTOM
    x = Axis(0, most, name_width + 16, WIDTH - RIGHT - total_width)
    for tick in x.ticks():
        canvas.line((x(tick), top - 4), (x(tick), bottom), colour=FAINT)
        canvas.text(x(tick), bottom + 18, _number(tick), 11, GREY, "middle")
    canvas.text(x.end, bottom + 38, unit, 11, GREY, "end")
    for place, (name, row) in enumerate(rows.items()):
        at = top + place * (BAR + BAR_GAP) + BAR_GAP / 2
        canvas.text(x.start - 8, at + BAR / 2 + 4, name, LABEL, INK, "end")
        reached = 0.0
        for part, value in row.items():
            left = x(reached)
            reached += value
            canvas.box(left, at, x(reached) - left, BAR, colours[part])
        canvas.text(x(reached) + 7, at + BAR / 2 + 4, totals[name], LABEL, INK)
    canvas.line((x.start, top - 4), (x.start, bottom), colour=GREY)
    return canvas


def _intervals(canvas: Canvas, one: Series, x: Axis, y: Axis, colour: str) -> None:
    spans = [
        (x(mark.x), y(mark.low), y(mark.high))
        for mark in sorted(one.marks, key=lambda m: m.x)
        if mark.low is not None and mark.high is not None
    ]
    if len(spans) == 1:
        at, low, high = spans[0]
        canvas.line((at, low), (at, high), colour=colour, width=1.5)
    elif spans:
        upper, lower = [(at, high) for at, _, high in spans], [(at, low) for at, low, _ in spans]
        canvas.polygon(*upper, *lower[::-1], colour=colour, opacity=0.07)


def _headings(canvas: Canvas, title: str, note: str) -> None:
    canvas.text(16, 28, title, 16, INK, bold=True)
    canvas.text(16, 48, note, LABEL, GREY)


def _legend_rows(parts: Sequence[str]) -> list[list[str]]:
    rows: list[list[str]] = [[]]
    used = 16.0
    for part in parts:
        needed = 34 + text_width(part, LABEL)
        if used + needed > WIDTH - 16 and rows[-1]:
            rows.append([])
            used = 16.0
        rows[-1].append(part)
        used += needed
    return rows


def _x_axis(values: Sequence[float], log: bool) -> Axis:
    low, high, end = min(values), max(values), WIDTH - RIGHT - 36
    if log:
        spread = max(high / low, 1.5) ** 0.06
        return Axis(low / spread, high * spread, LEFT, end, log=True)
    return Axis(0, high * 1.04 or 1.0, LEFT, end)


def _y_axis(marks: Sequence[Mark], level: tuple[str, float] | None, start: float) -> Axis:
    values = [v for m in marks for v in (m.y, m.low, m.high) if v is not None]
    if level is not None:
        values.append(level[1])
    low, high = min(values), max(values)
    pad = 0.08 * (high - low) or 1.0
    bottom = 0.0 if 0 <= low < 0.35 * high else low - pad
    return Axis(bottom, high + pad, start, TOP)


def _grid(canvas: Canvas, x: Axis, y: Axis, x_name: str, y_name: str) -> None:
    for tick in y.ticks():
        canvas.line((x.start, y(tick)), (x.end, y(tick)), colour=FAINT)
        canvas.text(x.start - 8, y(tick) + 4, _number(tick), 11, GREY, "end")
    for tick in x.ticks():
        canvas.line((x(tick), y.start), (x(tick), y.start + 4), colour=GREY)
        canvas.text(x(tick), y.start + 18, _number(tick), 11, GREY, "middle")
    canvas.line((x.start, y.start), (x.end, y.start), colour=GREY)
    canvas.text(16, TOP - 8, y_name, 11, GREY)
    canvas.text(x.end, y.start + 38, x_name, 11, GREY, "end")


def _frontier(marks: Sequence[Mark], x: Axis, y: Axis) -> list[Point]:
    best, points = -math.inf, []
    for mark in sorted(marks, key=lambda m: (m.x, -m.y)):
        if mark.y > best:
            best = mark.y
            points.append((x(mark.x), y(mark.y)))
    return points


def _names(
    canvas: Canvas, series: Sequence[Series], level: tuple[str, float] | None, left: float
) -> None:
    """Down the right side, the highest marks first, the level last."""
    order = sorted(range(len(series)), key=lambda i: -fmean(mark.y for mark in series[i].marks))
    for place, number in enumerate(order):
        y = TOP + 10 + 20 * place
        if series[number].computed:
            canvas.line((left, y - 4), (left + 12, y - 4), colour=_colour(number), width=2)
        else:
            canvas.marker(_marker(number), (left + 6, y - 4), _colour(number))
        canvas.text(left + 18, y, series[number].name, LABEL)
    if level is not None:
        y = TOP + 10 + 20 * len(order)
        canvas.line((left, y - 4), (left + 14, y - 4), colour=GREY, dashed=True)
        canvas.text(left + 18, y, level[0], LABEL, GREY)


def _colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def _marker(number: int) -> str:
    return MARKERS[number % len(MARKERS)]


def _number(value: float) -> str:
    return f"{value:,.10g}" if abs(value) >= 1_000 else f"{value:g}"
