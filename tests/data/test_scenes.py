"""Composed pictures: never more than the share, always inside, the same for a seed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from skipqa.data.scenes import SIDE, compose, to_webp


@given(st.integers(1, 300), st.integers(1, 300), st.floats(0.01, 0.35), st.integers(0, 1000))
def test_the_box_is_inside_and_no_larger_than_asked(
    width: int, height: int, fraction: float, seed: int
) -> None:
    ground, subject = Image.new("RGB", (60, 40), "grey"), Image.new("RGB", (width, height), "red")
    picture, box = compose(ground, subject, fraction, Random(seed))
    assert picture.size == (SIDE, SIDE)
    assert box.area <= max(fraction, SIDE / SIDE**2)  # a line is at least a pixel wide
    assert box.x - box.width / 2 >= 0
    assert box.x + box.width / 2 <= 1
    assert box.y - box.height / 2 >= 0
    assert box.y + box.height / 2 <= 1


def test_the_middle_is_the_subject_and_the_edge_is_soft() -> None:
    ground, subject = Image.new("RGB", (50, 50), "black"), Image.new("RGB", (50, 50), "white")
    picture, box = compose(ground, subject, 0.09, Random(1))
    x, y = round(box.x * SIDE), round(box.y * SIDE)
    row = [picture.getpixel((column, y))[0] for column in range(SIDE)]  # type: ignore[index]
    assert row[x] == 255
    assert row[0] == 0 or box.x - box.width / 2 == 0
    assert any(0 < value < 255 for value in row)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_gives_the_same_bytes(seed: int) -> None:
    ground, subject = Image.new("RGB", (50, 50), "black"), Image.new("RGB", (30, 50), "white")
    one, two = (to_webp(compose(ground, subject, 0.09, Random(seed))[0]) for _ in range(2))
    assert one == two
