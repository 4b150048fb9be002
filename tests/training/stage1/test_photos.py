"""Photos as pixels, and pixels as the encoder's features."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tiny_training import networks, photo_names, shrink_pictures, write_zip
from torch import Tensor

from skipqa.errors import UserError
from skipqa.nn.tagger import pool_views
from skipqa.training.stage1 import photos
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.photos import CUT, INSIDE, OUTSIDE, TIGHT, Things
from skipqa.training.stage1.pocket_kb import Thing

CPU = torch.device("cpu")
seeds = st.integers(0, 2**31)


@pytest.fixture
def table(tmp_path: Path) -> dict[tuple[Path, str], int]:
    """Five photos of two zips, their rows mixed."""
    first, second = tmp_path / "a.zip", tmp_path / "b.zip"
    write_zip(first, photo_names(0, 3))
    write_zip(second, photo_names(10, 2))
    names = [*((first, name) for name in photo_names(0, 3)), *((second, n) for n in photo_names(10, 2))]  # fmt: skip  # noqa: E501
    return dict(zip(names, (4, 0, 2, 1, 3), strict=True))


@pytest.mark.parametrize(("chunk", "size"), [(2, photos.PIXELS), (8, photos.HIGH_RES)])
def test_every_photo_is_in_its_row(
    table: dict[tuple[Path, str], int], chunk: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a job has as many bytes at any size."""
    monkeypatch.setattr(photos, "CHUNK", chunk)
    counted: list[tuple[int, int]] = []
    given = () if size == photos.PIXELS else (size,)
    pixels = photos.decode(table, lambda *done: counted.append(done), *given)
    assert counted == [(2, 5), (3, 5), (5, 5)]
    for (archive, name), row in table.items():
        with zipfile.ZipFile(archive) as file:
            image = Image.open(io.BytesIO(file.read(name))).convert("RGB")
        expected = np.asarray(image.resize((size, size), Image.Resampling.BICUBIC))
        assert np.array_equal(pixels[row].permute(1, 2, 0).numpy(), expected)


def test_what_is_no_photo_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.webp", "Once upon a time")
    with pytest.raises(UserError, match=r"a.zip holds no photo at notes.webp"):
        photos.decode({(path, "notes.webp"): 0})


def things(count: int, *, flags: tuple[int, ...] = ()) -> Things:
    """Whole pictures, some of them of flags."""
    photos = {(Path("z"), str(row)): row for row in range(count)}
    return Things.of(Mixture(photos=photos, things=dict.fromkeys(flags, (Thing("flag", "mali"),))))


def test_where_things_are() -> None:
    mixture = Mixture(
        photos={(Path("z"), str(row)): row for row in range(4)},
        labels={0: ("cup",), 3: ("dog",)},
        things={1: (Thing("flag", "mali", (0.35, 0.3, 0.65, 0.5)),), 3: (Thing("dog", "pug"),)},
    )
    found = Things.of(mixture)
    whole = [0.0, 0.0, 1.0, 1.0]
    assert found.boxes[:, 0].tolist() == [whole, [0.35, 0.3, 0.65, 0.5], whole, whole]
    assert not found.crowded.any()
    assert found.may_mirror.tolist() == [True, False, True, True]
    assert found.whole.tolist() == [False, False, False, True]
    assert found.grounds.tolist() == [0]


def test_views(table: dict[tuple[Path, str], int]) -> None:
    """Plain, mirrored unless it is a flag, and a crop; high resolution by its windows."""
    pixels, encoder = photos.decode(table), networks().vision
    flag = 2
    counted: list[tuple[int, int]] = []
    shown = things(5, flags=(flag,))
    seen = photos.extract(
        encoder, pixels, shown, views=3, crops=2, counted=lambda *done: counted.append(done)
    )
    assert counted == [(5, 5)]
    width = encoder.config.features
    assert seen.views.shape == (3, 5, photos.CELLS, width)
    assert seen.crops.shape == (2, 5, 2 * width)
    plain = pixels.float() / 127.5 - 1
    mirrored = plain.flip(3)
    mirrored[flag] = plain[flag]
    with torch.inference_mode():
        for view, expected in enumerate((plain, mirrored)):
            features = encoder(expected).flatten(2).transpose(1, 2).bfloat16()
            torch.testing.assert_close(seen.views[view], features, rtol=0.02, atol=1e-3)
        logits = encoder.classifier(encoder(plain).mean((2, 3)))
        larger = torch.nn.functional.interpolate(
            plain, (photos.HIGH_RES, photos.HIGH_RES), mode="bicubic", antialias=True
        )
        windows = pool_views(encoder(larger), photos.NATIVE_CELLS).flatten(1, 2)
    torch.testing.assert_close(seen.overview, logits.softmax(-1))
    assert windows.shape[1] == photos.WINDOWS
    torch.testing.assert_close(seen.windows, windows.bfloat16(), rtol=0.02, atol=1e-3)
    again = photos.extract(encoder, pixels, shown, views=3, crops=2)
    assert torch.equal(seen.views, again.views)
    assert torch.equal(seen.crops, again.crops)


CROWD = (
    Thing("dog", "pug", (0.05, 0.1, 0.25, 0.3)),
    Thing("dog", "corgi", (0.6, 0.2, 0.95, 0.4)),
    Thing("flower", "rose", (0.3, 0.7, 0.5, 0.95)),
)


def crowd(*others: Thing) -> Things:
    """A photo of nothing known, then a crowded one, to train on and to score by."""
    photos = {(Path("z"), str(row)): row for row in range(3)}
    things = (*CROWD, *others)
    return Things.of(Mixture(photos=photos, things={1: things}, checks={"val": {2: things}}))


def test_a_crowded_image_has_a_box_for_each_thing() -> None:
    found = crowd()
    assert found.count.tolist() == [1, 3, 3]
    assert found.crowded.tolist() == [False, True, True]
    expected = torch.tensor([thing.box for thing in CROWD], dtype=torch.float64)
    assert torch.equal(found.boxes[1], expected)
    assert torch.equal(found.boxes[2], expected)
    assert not found.whole.any()  # it is never made small in another photo
    assert found.may_mirror.all()
    flag = Thing("flag", "mali", (0.8, 0.8, 0.9, 0.9))
    assert crowd(flag).may_mirror.tolist() == [True, False, False]


def test_a_crowded_image_stays_as_it_is_for_questions() -> None:
    """All its views are the same; its crops are not."""
    encoder, pixels = networks().vision, torch.zeros(3, 3, 64, 64, dtype=torch.uint8)
    pixels[:, 0, 10:40, 5:30], pixels[:, 2, 50:, 30:] = 255, 255
    given: list[Tensor] = []
    encoder.register_forward_pre_hook(lambda _, images: given.append(*images))
    with pytest.MonkeyPatch.context() as patch:
        shrink_pictures(patch)
        seen = photos.extract(encoder, pixels, crowd(), views=4, crops=4)
    views, crops = given[:4], given[4:8]
    for shown in views[1:]:
        assert torch.equal(shown[1:], views[0][1:])
        assert not torch.equal(shown[0], views[0][0])
    assert seen.crop_shows.shape == (4, 3, 3)
    for number in range(4):  # its things in turn
        assert (seen.crop_shows[number, 1:, number % 3] == INSIDE).all()
    assert not torch.equal(crops[0][1], crops[1][1])


@given(seeds, st.integers(0, 2), st.floats(0.1, 0.9))
def test_a_crop_of_a_crowded_image_shows_one_thing_large(
    seed: int, which: int, least: float
) -> None:
    shown, rows = crowd(), torch.tensor([1])
    generator, chosen = torch.Generator().manual_seed(seed), torch.tensor([which])
    windows, shows = shown.crops(shown.boxes[rows], rows, chosen, generator, least)
    left, right, top, bottom = (float(side) for side in edges(windows))
    for place, thing in enumerate(CROWD):
        assert thing.box is not None
        x0, y0, x1, y1 = thing.box
        width, height = min(x1, right) - max(x0, left), min(y1, bottom) - max(y0, top)
        part = max(0.0, width) * max(0.0, height) / ((x1 - x0) * (y1 - y0))
        if place == which:
            assert shows[0, place] == INSIDE
            assert part > 0.99
            assert max(x1 - x0, y1 - y0) >= max(least, TIGHT) * (right - left) - 1e-5
        elif abs(part - 0.9) > 1e-3 and not 0 < part < 1e-3:  # rounding apart
            expected = INSIDE if part > 0.9 else CUT if part else OUTSIDE
            assert shows[0, place] == expected or (part == 0 and min(width, height) > -1e-5)


def test_what_fills_its_photo_is_shown_by_any_crop() -> None:
    shown, first = things(4), torch.zeros(4, dtype=torch.long)
    windows, shows = shown.crops(shown.boxes, torch.arange(4), first, torch.Generator())
    assert (windows[:, 1, 1] < 1).any()
    assert (shows == INSIDE).all()


def edges(windows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Left, right, top and bottom, in [0, 1] of the picture."""
    assert (windows[:, 0, 1] == 0).all()
    assert (windows[:, 1, 0] == 0).all()
    across, down = (windows[:, 0, 2] + 1) / 2, (windows[:, 1, 2] + 1) / 2
    width, height = windows[:, 0, 0].abs(), windows[:, 1, 1]
    return across - width / 2, across + width / 2, down - height / 2, down + height / 2


def inside(windows: Tensor) -> bool:
    left, right, top, bottom = edges(windows)
    low, high = torch.minimum(left, top), torch.maximum(right, bottom)
    return bool((low >= -1e-5).all() and (high <= 1 + 1e-5).all())


@given(seeds, st.floats(0.1, 0.7))
def test_a_frame_is_inside_the_picture_and_most_of_it(seed: int, least: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    found = photos.frames(64, generator, torch.ones(64, dtype=torch.bool), least)
    assert inside(found)
    left, right, top, bottom = edges(found)
    area = (right - left) * (bottom - top)
    assert (area >= least - 1e-5).all()
    assert (area <= 1 + 1e-5).all()


@st.composite
def boxes(draw: st.DrawFn) -> list[float]:
    """Inside the image: left, top, right, bottom."""
    sizes = [draw(st.floats(0.02, 1.0)) for _ in range(2)]
    left, top = (draw(st.floats(0, 1 - size)) for size in sizes)
    return [left, top, left + sizes[0], top + sizes[1]]


@given(seeds, st.lists(boxes(), min_size=1, max_size=8), st.floats(0.05, 0.95))
def test_a_zoom_has_the_whole_box_and_shows_it_large(
    seed: int, some: list[list[float]], least: float
) -> None:
    boxes = torch.tensor(some)
    generator = torch.Generator().manual_seed(seed)
    found = photos.zooms(boxes, generator, torch.ones(len(some), dtype=torch.bool), least)
    assert inside(found)
    left, right, top, bottom = edges(found)
    side = right - left
    torch.testing.assert_close(side, bottom - top)
    x0, y0, x1, y1 = boxes.T
    larger = torch.maximum(x1 - x0, y1 - y0)
    fills = larger > 0.95
    assert (side[fills] >= 0.5 - 1e-5).all()
    slack = 1e-5
    held = (left <= x0 + slack) & (x1 <= right + slack)
    held &= (top <= y0 + slack) & (y1 <= bottom + slack)
    assert (held | fills).all()
    assert ((larger >= least * side - slack) | fills).all()


@given(seeds)
def test_flags_are_never_mirrored_and_half_of_the_others_are(seed: int) -> None:
    may_mirror = torch.arange(400) % 2 == 0
    boxes = torch.tensor([[0.25, 0.2, 0.55, 0.8]]).repeat(400, 1)
    generator = torch.Generator().manual_seed(seed)
    for found in (
        photos.frames(400, generator, may_mirror),
        photos.zooms(boxes, generator, may_mirror),
    ):
        mirrored = found[:, 0, 0] < 0
        assert not mirrored[~may_mirror].any()
        assert 0.3 < float(mirrored[may_mirror].float().mean()) < 0.7


@given(seeds)
def test_a_crop_shows_its_window(seed: int) -> None:
    """Of a picture whose pixels say where they are."""
    size, count = 64, 8
    middles = (2 * torch.arange(size) + 1) / size - 1
    across = middles.expand(count, size, size)
    place = torch.stack((across, across.transpose(1, 2), torch.zeros_like(across)), dim=1)
    generator = torch.Generator().manual_seed(seed)
    windows = photos.frames(count, generator, torch.ones(count, dtype=torch.bool))
    cropped = photos.crop(place, windows)
    within = slice(1, -1)  # at the very edge the picture is reflected
    for axis, line in ((0, cropped[:, 0, size // 2]), (1, cropped[:, 1, :, size // 2])):
        expected = windows[:, axis, axis, None] * middles + windows[:, axis, 2, None]
        torch.testing.assert_close(line[:, within], expected[:, within], rtol=0, atol=1e-4)


def test_all_of_a_picture_is_the_picture() -> None:
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    whole = torch.tensor([[[1.0, 0, 0], [0, 1, 0]]]).repeat(2, 1, 1)
    torch.testing.assert_close(photos.crop(pixels, whole), pixels, rtol=0, atol=1e-5)
    whole[:, 0, 0] = -1
    torch.testing.assert_close(photos.crop(pixels, whole), pixels.flip(3), rtol=0, atol=1e-5)


def test_bytes_as_input() -> None:
    found = photos.as_input(torch.tensor([0, 255], dtype=torch.uint8), CPU)
    assert found.tolist() == [-1.0, 1.0]


@given(seed=seeds, size=st.integers(24, 64))
def test_a_pasted_thing_is_where_its_box_says(seed: int, size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    things, grounds = torch.ones(3, 3, size, size), -torch.ones(3, 3, size, size)
    scenes, boxes = photos.paste(things, grounds, generator)
    assert (grounds == -1).all()  # left as they were
    left, top, right, bottom = boxes.T
    width, (least, most) = right - left, photos.PASTED
    torch.testing.assert_close(width, bottom - top)
    assert least - 1 / size < width[0] < most + 1 / size
    for scene, *place in zip(scenes, left, top, width, strict=True):
        across, down, side = (round(float(v) * size) for v in place)
        inside = torch.zeros(size, size, dtype=torch.bool)
        inside[down : down + side, across : across + side] = True
        assert (scene[:, ~inside] == -1).all()
        assert (scene[:, inside] > -1).all()
        assert scene[:, down + side // 2, across + side // 2].min() > 0.99


def test_only_things_that_fill_their_photo_are_pasted() -> None:
    whole = torch.tensor([True, False, True, False])
    shown = Things(
        boxes=torch.tensor([0.0, 0.0, 1.0, 1.0]).repeat(4, 1, 1),
        count=torch.ones(4, dtype=torch.long),
        may_mirror=torch.ones(4, dtype=torch.bool),
        whole=whole,
        grounds=torch.tensor([3]),
    )
    pixels = torch.full((4, 3, 32, 32), 255, dtype=torch.uint8)
    pixels[3] = 0
    rows, plain = torch.tensor([2, 1]), torch.ones(2, 3, 32, 32)
    generator = torch.Generator().manual_seed(0)
    pasted, boxes = shown.paste(plain, rows, pixels, generator, fraction=1.0)
    assert pasted[0].min() == -1
    assert torch.equal(pasted[1], plain[1])
    assert boxes[0, 0, 2] - boxes[0, 0, 0] < 0.5
    assert boxes[1, 0].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert (plain == 1).all()
    same, boxes = shown.paste(plain, rows, pixels, generator, fraction=0.0)
    assert torch.equal(same, plain)
    assert (boxes == torch.tensor([0.0, 0.0, 1.0, 1.0])).all()
