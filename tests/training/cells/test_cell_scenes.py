"""Composites: what is where they say."""

from __future__ import annotations

import pytest
import torch
from drawn_album import COLOURS, GROUND, LEFT, NAMES, RIGHT, album, pixels
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_training import shrink_pictures

from skipqa.training.cells.scenes import (
    APART,
    MOST,
    SIDES,
    Scenes,
    composed,
    photographed,
    together,
)
from skipqa.training.stage1 import photos


@pytest.fixture(scope="module", autouse=True)
def _small() -> object:
    with pytest.MonkeyPatch.context() as patch:
        shrink_pictures(patch)
        yield


def made(seed: int, count: int = 6) -> Scenes:
    return composed(album(), pixels(), count, torch.Generator().manual_seed(seed))


@given(seed=st.integers(0, 1_000))
@settings(max_examples=20)
def test_a_thing_shows_at_the_middle_of_its_box_and_nowhere_else(seed: int) -> None:
    scenes = made(seed)
    size = photos.HIGH_RES
    colours = torch.tensor(COLOURS) / 127.5 - 1
    assert scenes.high_res.shape == (6, 3, size, size)
    assert scenes.low_res.shape == (6, 3, photos.PIXELS, photos.PIXELS)
    free = torch.ones(6, size, size, dtype=torch.bool)
    for box, image, name in zip(scenes.boxes, scenes.image, scenes.names, strict=True):
        x, y = ((box[:2] + box[2:]) / 2 * size).long()
        if (box[2:] - box[:2]).min() > 0.2:  # elsewhere the picture is too small for a colour
            found = scenes.high_res[image, :, y, x]
            torch.testing.assert_close(found, colours[name], atol=0.25, rtol=0)
        left, top = ((box[:2] * size).long() - 6).clamp(min=0)
        right, bottom = (box[2:] * size).long() + 7
        free[image, top:bottom, left:right] = False
    ground = scenes.high_res.permute(0, 2, 3, 1)[free]
    torch.testing.assert_close(ground, colours[GROUND].expand_as(ground), atol=0.02, rtol=0)


@given(seed=st.integers(0, 1_000))
@settings(max_examples=20)
def test_boxes_are_apart_and_inside(seed: int) -> None:
    scenes = made(seed, 12)
    sides = scenes.boxes[:, 2:] - scenes.boxes[:, :2]
    assert (scenes.boxes >= 0).all()
    assert (scenes.boxes <= 1 + 1e-6).all()
    assert (sides >= SIDES[0] * 0.8).all()
    assert (sides <= SIDES[1] + 1e-6).all()
    counts = torch.bincount(scenes.image, minlength=12)
    assert counts.min() >= 1
    assert counts.max() <= MOST
    for image in range(12):
        some = scenes.boxes[scenes.image == image]
        low, high = some[:, None, :2], some[:, None, 2:]
        apart = (low > some[None, :, 2:] + APART * 0.99) | (high < some[None, :, :2] - APART * 0.99)
        assert (apart.any(-1) | torch.eye(len(some), dtype=torch.bool)).all()


def test_a_seed_is_a_scene() -> None:
    first, again, other = made(1), made(1), made(2)
    assert torch.equal(first.high_res, again.high_res)
    assert torch.equal(first.boxes, again.boxes)
    assert not torch.equal(first.high_res, other.high_res)


def test_photos_are_as_they_are_and_join_composites() -> None:
    boxed, pasted = album().boxed[0], album().pasted[0]
    shown = photographed(pixels(), [boxed, pasted], len(NAMES))
    assert shown.boxes.tolist() == torch.tensor([LEFT, RIGHT, LEFT]).tolist()
    assert (shown.image.tolist(), shown.names.tolist()) == ([0, 0, 1], [0, 1, 0])
    assert shown.may_show.tolist() == [[False, False, True, True], [False, False, False, True]]
    assert shown.ground_known.tolist() == [True, False]
    scenes = made(3)
    both = together(scenes, shown)
    assert torch.equal(both.image, torch.cat((scenes.image, shown.image + 6)))
    assert torch.equal(both.high_res[6:], shown.high_res)
    assert torch.equal(both.boxes[-3:], shown.boxes)
