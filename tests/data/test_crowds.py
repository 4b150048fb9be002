"""Several things in one photo: apart, inside, and exactly where their boxes say."""

from __future__ import annotations

from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from skipqa.data.crowds import (
    CARDS,
    GAP,
    MOST,
    SIDE,
    Rectangle,
    Shape,
    arrange,
    compose_crowd,
    frame_of,
)

shapes = st.lists(
    st.builds(Shape, st.floats(0.5, 2.0), st.sampled_from([0.12, 0.16])), min_size=2, max_size=6
)


@given(shapes, st.booleans(), st.integers(0, 1000))
def test_a_layout_never_overlaps(some: list[Shape], on_cards: bool, seed: int) -> None:
    found = arrange(some, on_cards, Random(seed))
    if found is None:
        return
    frames = [frame_of(one) if on_cards else 0 for one in found]
    for one, shape, frame in zip(found, some, frames, strict=True):
        left, top, right, bottom = one.grown(frame).corners
        assert 0 <= left < right <= SIDE
        assert 0 <= top < bottom <= SIDE
        assert shape.least <= one.longer / SIDE <= MOST
    whole = [one.grown(frame) for one, frame in zip(found, frames, strict=True)]
    for a, b in combinations(whole, 2):
        across = max(a.left, b.left) - min(a.corners[2], b.corners[2])
        down = max(a.top, b.top) - min(a.corners[3], b.corners[3])
        assert max(across, down) >= GAP


def test_most_layouts_of_a_few_things_are_found() -> None:
    some = [Shape(1.3, 0.16)] * 4
    assert sum(arrange(some, True, Random(seed)) is not None for seed in range(50)) > 25


@pytest.mark.parametrize("card", [None, *CARDS])
def test_the_box_is_true_to_the_pixels(card: str | None) -> None:
    """A marker is found where its box says; a soft edge takes a few pixels of it."""
    ground, marker = Image.new("RGB", (50, 40), "grey"), Image.new("RGB", (30, 20), "magenta")
    place = Rectangle(40, 101, 90, 60)
    pixels = np.asarray(compose_crowd(ground, [(marker, place, card)])).astype(int)
    marked = np.abs(pixels - (255, 0, 255)).sum(-1) < 60
    rows, columns = np.nonzero(marked.any(1))[0], np.nonzero(marked.any(0))[0]
    edges = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    soft = 0 if card else 5
    assert np.abs(np.subtract(edges, place.corners)).max() <= soft
    if card is not None:
        beside = pixels[place.top + 30, place.left - 3]
        assert tuple(beside) == CARDS[card]
    box = place.box
    assert (box.x - box.width / 2) * SIDE == pytest.approx(40)
    assert (box.y + box.height / 2) * SIDE == pytest.approx(161)


def test_cards_are_well_apart() -> None:
    for one, two in combinations(CARDS.values(), 2):
        assert np.abs(np.subtract(one, two)).sum() > 150
