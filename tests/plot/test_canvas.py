"""The same sheet as SVG and as PNG."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from skipqa.plot.canvas import MARKERS, PNG_SCALE, Canvas, text_width

SVG = "{http://www.w3.org/2000/svg}"


def test_text_stays_text() -> None:
    canvas = Canvas(100, 50)
    canvas.text(5, 20, "a < b & <script>")
    found = ET.fromstring(canvas.svg()).find(f"{SVG}text")
    assert found is not None
    assert found.text == "a < b & <script>"


def test_both_files_are_written_and_have_the_same_shape(tmp_path: Path) -> None:
    canvas = Canvas(60, 40)
    canvas.box(10, 10, 20, 20, "#0072b2")
    canvas.save(tmp_path / "figure")
    assert ET.parse(tmp_path / "figure.svg").getroot().get("viewBox") == "0 0 60 40"
    with Image.open(tmp_path / "figure.png") as image:
        assert image.size == (60 * PNG_SCALE, 40 * PNG_SCALE)
        pixels = np.asarray(image.convert("RGB"))
    assert tuple(pixels[20 * PNG_SCALE, 20 * PNG_SCALE]) == (0, 0x72, 0xB2)
    assert tuple(pixels[5, 5]) == (255, 255, 255)


@pytest.mark.parametrize("kind", MARKERS)
def test_markers_are_drawn_around_their_point(kind: str) -> None:
    canvas = Canvas(40, 40)
    canvas.marker(kind, (20, 20), "#000000")
    dark = np.argwhere(np.asarray(canvas.png().convert("L")) < 128) / PNG_SCALE
    assert len(dark) > 100
    assert np.abs(dark.mean(0) - 20).max() < 1
    assert np.abs(dark - 20).max() < 8


def test_bands_let_the_grid_through_and_dashes_leave_gaps() -> None:
    canvas = Canvas(100, 20)
    canvas.line((0, 5), (100, 5), colour="#000000", width=2)
    canvas.polygon((0, 0), (100, 0), (100, 10), (0, 10), colour="#ff0000", opacity=0.1)
    canvas.line((0, 15), (100, 15), colour="#000000", width=2, dashed=True)
    pixels = np.asarray(canvas.png().convert("L")).astype(int)
    assert pixels[5 * PNG_SCALE].max() < 60
    assert 200 < pixels[2 * PNG_SCALE].min() < 255
    dashed = pixels[15 * PNG_SCALE] < 128
    assert 0.4 < dashed.mean() < 0.7


def test_wider_texts_are_wider() -> None:
    assert text_width("skip", 12) < text_width("skip-no-pruning", 12) < text_width("skip" * 9, 12)
    assert text_width("skip", 24) == pytest.approx(2 * text_width("skip", 12))
