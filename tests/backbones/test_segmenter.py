"""Boxes on images of any shape."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from skipqa.backbones.networks import mobile_sam
from skipqa.backbones.segmenter import Segmenter, fit, mask_box
from skipqa.image import open_image


@pytest.mark.parametrize(
    ("size", "extent"),
    [
        ((640, 480), (1, 0.75)),
        ((300, 1_200), (0.25, 1)),
        ((7, 7), (1, 1)),
        ((5_000, 1), (1, 1 / 64)),
    ],
)
def test_the_longer_side_fills_the_square(
    size: tuple[int, int], extent: tuple[float, float]
) -> None:
    pixels, width, height = fit(Image.new("RGB", size, (255, 0, 124)), 64)
    assert pixels.shape == (1, 3, 64, 64)
    assert (width, height) == extent
    inside = pixels[0, :, : round(height * 64), : round(width * 64)]
    for channel, value in zip(inside, (2.2489, -2.0357, 0.3568), strict=True):
        torch.testing.assert_close(channel, torch.full_like(channel, value), rtol=0, atol=1e-3)
    assert pixels.abs().sum() == pytest.approx(inside.abs().sum().item())  # the rest is zero


def test_a_rectangle_has_its_own_box_and_specks_are_left_out() -> None:
    mask = torch.zeros(100, 200, dtype=torch.bool)
    mask[20:70, 40:150] = True
    box = mask_box(mask)
    assert box == pytest.approx((40 / 200, 20 / 100, 150 / 200, 70 / 100), abs=0.011)
    mask[0, 0] = mask[99, 199] = True
    assert mask_box(mask) == pytest.approx(box, abs=0.011)


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 8)), min_size=1))
def test_boxes_lie_on_the_image_and_hold_nearly_all_of_the_mask(
    cells: list[tuple[int, int]],
) -> None:
    mask = torch.zeros(9, 12, dtype=torch.bool)
    for column, row in cells:
        mask[row, column] = True
    left, top, right, bottom = mask_box(mask)
    assert 0 <= left < right <= 1
    assert 0 <= top < bottom <= 1
    held = mask[round(top * 9) : round(bottom * 9), round(left * 12) : round(right * 12)]
    assert held.sum() >= 0.96 * mask.sum()


def test_the_cup_and_the_coffee_are_found(segmenter: Segmenter, photo: Path) -> None:
    """Espresso seen from above: its surface, and the spoon next to the cup."""
    points = [(0.48, 0.36), (0.65, 0.73)]
    found = segmenter.boxes(open_image(photo), points)
    for (left, top, right, bottom), (across, down) in zip(found.boxes, points, strict=True):
        assert left < across < right
        assert top < down < bottom
        assert 0.005 < (right - left) * (bottom - top) < 0.3
    assert found.flops == mobile_sam.flops(segmenter.network.config, 2)


@pytest.mark.parametrize("size", [(900, 1), (1, 900), (900, 599)])
def test_uniform_images_have_boxes_too(segmenter: Segmenter, size: tuple[int, int]) -> None:
    points = [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)]
    for left, top, right, bottom in segmenter.boxes(Image.new("RGB", size), points).boxes:
        assert 0 <= left < right <= 1
        assert 0 <= top < bottom <= 1
