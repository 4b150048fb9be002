"""Figures in one style: lines and points over two axes, and stacked bars, drawn by matplotlib.

Enters: numbers with names. Leaves: a figure, saved as SVG and PNG. The same numbers give the same
bytes. It does not know what the numbers mean. matplotlib is the extra `plot` and is imported when
a figure is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from skipqa.errors import MissingExtra, UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, FAINT = "#1f2328", "#656d76", "#d8dee4"
# Okabe and Ito's colour-blind safe palette without its yellow, which is hard to see on white, and
# three darker colours; series also differ in their markers, and bars keep the legend's order
PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
    *("#5d4a8a", "#8c564b", "#7f7f7f"),
)
MARKERS = "os^DP*vX"

WIDTH, HEIGHT = 8.4, 4.6  # inches
BAR_HEIGHT = 0.42  # inches for each bar and the gap next to it
DPI = 160  # of the PNG
METADATA = {".svg": {"Date": None}, ".png": {"Software": None}}  # nothing that changes
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "grid.color": FAINT,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "skipqa",  # otherwise ids differ from run to run
}


@dataclass(frozen=True, slots=True)
class Labels:
    """What is written around the axes."""

    title: str
    note: str
    x: str
    y: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A point; `low` and `high` are its interval, if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Marks under one name; more than one are joined by a line.

    `computed` marks are points of a formula's curve, not measurements, and have no symbols.
    """

    name: str
    marks: Sequence[Mark]
    computed: bool = False


def line_chart(
    series: Sequence[Series],
    labels: Labels,
    *,
    log_x: bool = False,
    frontier: bool = False,
    level: tuple[str, float] | None = None,
) -> Figure:
    """The interval of a single point is a bar, that of a line a band.

    `frontier` draws the line of the points that no other point beats on both axes (less x, more
    y); `level` is a named horizontal line.
    """
    with _drawing(labels, HEIGHT) as (figure, axes):
        axes.grid(axis="y")
        if log_x:
            _log_x(axes)
        if frontier:
            best = _frontier([mark for one in series for mark in one.marks])
            axes.plot([m.x for m in best], [m.y for m in best], color=FAINT, linewidth=6, zorder=1)
        handles = [_draw(axes, number, one) for number, one in enumerate(series)]
        highest_first = sorted(
            zip(handles, series, strict=True), key=lambda pair: -fmean(m.y for m in pair[1].marks)
        )
        shown = [handle for handle, _ in highest_first]
        names = [one.name for _, one in highest_first]
        if level is not None:
            names.append(level[0])
            shown.append(axes.axhline(level[1], color=GREY, linestyle="--", linewidth=1))
        _fit(axes, log_x)
        axes.legend(shown, names, loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0)
    return figure


def stacked_bars(
    rows: Mapping[str, Mapping[str, float]], labels: Labels, totals: Mapping[str, str]
) -> Figure:
    """One horizontal bar per row, its parts in the order in which they first appear."""
    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    with _drawing(labels, 2.1 + BAR_HEIGHT * len(rows)) as (figure, axes):
        axes.grid(axis="x")
        reached = dict.fromkeys(rows, 0.0)
        for number, part in enumerate(parts):
            lengths = [rows[name].get(part, 0.0) for name in rows]
            axes.barh(
                list(rows),
                lengths,
                left=list(reached.values()),
                height=0.62,
                color=PALETTE[number % len(PALETTE)],
                edgecolor="white",
                linewidth=1.0,
                label=part,
            )
            reached = {
                name: at + length
                for (name, at), length in zip(reached.items(), lengths, strict=True)
            }
        for place, (name, at) in enumerate(reached.items()):
            axes.annotate(
                totals[name], (at, place), (6, 0), textcoords="offset points", va="center"
            )
        axes.invert_yaxis()
        axes.set_xlim(0, 1.12 * max(reached.values()) or 1.0)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0)
    return figure


def save(figure: Figure, path: Path) -> None:
    """As `path`, an SVG or PNG by its suffix, without a date."""
    import matplotlib

    if path.suffix not in METADATA:
        raise UserError(f"{path} should end in {' or '.join(METADATA)}")
    with matplotlib.rc_context(STYLE):
        figure.savefig(
            path,
            dpi=DPI,
            metadata=METADATA[path.suffix],
            bbox_inches="tight",
            facecolor="white",
            pad_inches=0.15,
        )


@contextmanager
def _drawing(labels: Labels, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure with its titles, in the style; no window and no global state of pyplot."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("drawing figures", "plot") from None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height))
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.set_title(labels.title, loc="left", fontsize=13, fontweight="bold", pad=26)
        axes.annotate(
            labels.note,
            (0, 1),
            (0, 10),
            xycoords="axes fraction",
            textcoords="offset points",
            color=GREY,
            fontsize=9,
        )
        axes.set_xlabel(labels.x)
        axes.set_ylabel(labels.y)
        yield figure, axes


def _draw(axes: Axes, number: int, one: Series) -> Any:
    """The series and its intervals; returns its line for the legend."""
    marks = sorted(one.marks, key=lambda mark: mark.x)
    colour = PALETTE[number % len(PALETTE)]
    marker = "" if one.computed else MARKERS[number % len(MARKERS)]
    spans = [
        (mark.x, mark.low, mark.high)
        for mark in marks
        if mark.low is not None and mark.high is not None
    ]
    if len(spans) == 1:
        axes.vlines(*spans[0], color=colour, linewidth=1.5)
    elif spans:
        at, low, high = zip(*spans, strict=True)
        axes.fill_between(at, low, high, color=colour, alpha=0.1, linewidth=0)
    (line,) = axes.plot(
        [mark.x for mark in marks],
        [mark.y for mark in marks],
        color=colour,
        marker=marker,
        markersize=7,
        linestyle="-" if len(marks) > 1 else "",
        linewidth=2,
    )
    return line


def _log_x(axes: Axes) -> None:
    """Round numbers as ticks, also where the axis spans less than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(_number))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _fit(axes: Axes, log_x: bool) -> None:
    """The y axis starts at 0 where little would be lost by it, the linear x axis always."""
    low, high = axes.get_ylim()
    if 0 <= low < 0.35 * high:
        axes.set_ylim(bottom=0)
    if not log_x:
        axes.set_xlim(left=0)


def _frontier(marks: Sequence[Mark]) -> list[Mark]:
    best: list[Mark] = []
    for mark in sorted(marks, key=lambda m: (m.x, -m.y)):
        if not best or mark.y > best[-1].y:
            best.append(mark)
    return best


def _number(value: float, _: int | None = None) -> str:
    return f"{value:,.10g}" if abs(value) >= 1_000 else f"{value:g}"
