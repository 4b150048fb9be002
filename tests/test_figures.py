"""The style of figures: what is drawn, that files repeat to the byte, that text stays text."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from skipqa.errors import MissingExtra, UserError
from skipqa.figures import FAINT, Labels, Mark, Series, line_chart, save, stacked_bars

LABELS = Labels("title", "note", "x name", "y name")
SVG = "{http://www.w3.org/2000/svg}"


def legend(figure: Figure) -> list[str]:
    found = figure.axes[0].get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def frontier_of(figure: Figure) -> list[tuple[float, float]]:
    (line,) = [one for one in figure.axes[0].lines if one.get_color() == FAINT]
    return [(float(x), float(y)) for x, y in line.get_xydata()]


def test_a_chart_has_its_labels_and_names_its_series_highest_first() -> None:
    low, high = Series("low", [Mark(1, 10)]), Series("high", [Mark(2, 20, 15, 25)])
    figure = line_chart([low, high], LABELS, level=("dense", 1.0))
    axes = figure.axes[0]
    assert legend(figure) == ["high", "low", "dense"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x name", "y name")
    assert axes.get_title(loc="left") == "title"
    assert "note" in {text.get_text() for text in axes.texts}


def test_a_line_has_a_band_and_a_point_a_bar() -> None:
    point = line_chart([Series("one", [Mark(1, 2, 1, 3)])], LABELS).axes[0]
    line = line_chart([Series("two", [Mark(1, 2, 1, 3), Mark(2, 3, 2, 4)])], LABELS).axes[0]
    assert [type(one) for one in point.collections] == [LineCollection]
    (band,) = line.collections
    assert isinstance(band, PolyCollection)
    assert band.get_alpha() < 1


def test_series_differ_in_colour_and_marker_and_curves_have_no_symbols() -> None:
    series = [Series(str(n), [Mark(n, n), Mark(n + 1, n)]) for n in range(1, 5)]
    lines = line_chart([*series, Series("f", [Mark(1, 1)], computed=True)], LABELS).axes[0].lines
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 5
    assert lines[-1].get_marker() == ""


def test_the_frontier_passes_only_what_nothing_beats() -> None:
    points = [(1, 10), (2, 9), (3, 30), (4, 30), (5, 31)]
    series = [Series(str(point), [Mark(*point)]) for point in points]
    assert frontier_of(line_chart(series, LABELS, frontier=True)) == [(1, 10), (3, 30), (5, 31)]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=12))
def test_no_point_beats_the_frontier(points: list[tuple[int, int]]) -> None:
    series = [Series(str(n), [Mark(*point)]) for n, point in enumerate(points)]
    frontier = frontier_of(line_chart(series, LABELS, frontier=True))
    for x, y in points:
        assert any(at <= x and best >= y for at, best in frontier)


@pytest.mark.parametrize("factor", [4.0, 30.0, 2_000.0])
def test_logarithmic_ticks_are_enough_to_read(factor: float) -> None:
    figure = line_chart([Series("a", [Mark(0.7, 1), Mark(0.7 * factor, 2)])], LABELS, log_x=True)
    figure.canvas.draw()
    axes = figure.axes[0]
    low, high = axes.get_xlim()
    shown = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert len(shown) >= 2
    assert all(label.get_text() for label in axes.get_xticklabels())


def test_bars_are_as_long_as_their_parts() -> None:
    rows = {"long": {"a": 3.0, "b": 1.0}, "short": {"a": 1.0, "b": 1.0}}
    figure = stacked_bars(rows, LABELS, {"long": "4 ms", "short": "2 ms"})
    axes = figure.axes[0]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert [bar.get_width() for bar in bars] == [3, 1, 1, 1]
    assert [bar.get_x() for bar in bars] == [0, 0, 3, 1]
    assert legend(figure) == ["a", "b"]
    assert {"4 ms", "2 ms"} <= {text.get_text() for text in axes.texts}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["long", "short"]


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_files_repeat_to_the_byte(tmp_path: Path, kind: str) -> None:
    for name in ("one", "two"):
        series = [Series("a", [Mark(1, 2, 1, 3), Mark(2, 3, 2, 4)])]
        save(line_chart(series, LABELS), tmp_path / f"{name}.{kind}")
    assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()


def test_text_stays_text_and_both_formats_show_the_figure(tmp_path: Path) -> None:
    figure = line_chart([Series("a < b & <script>", [Mark(1, 2)])], LABELS)
    save(figure, tmp_path / "figure.svg")
    save(figure, tmp_path / "figure.png")
    found = ET.parse(tmp_path / "figure.svg").getroot().iter(f"{SVG}text")
    assert "a < b & <script>" in {text.text for text in found}
    with Image.open(tmp_path / "figure.png") as image:
        pixels = np.asarray(image.convert("RGB"))
    assert (pixels == (0x00, 0x72, 0xB2)).all(-1).any(), "the marker"
    assert tuple(pixels[2, 2]) == (255, 255, 255)


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"should end in \.svg or \.png"):
        save(line_chart([Series("a", [Mark(1, 2)])], LABELS), tmp_path / "figure.pdf")


def test_without_matplotlib_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with pytest.raises(MissingExtra, match=r"pip install 'skipqa\[plot\]'"):
        line_chart([Series("a", [Mark(1, 2)])], LABELS)
