"""Photos decoded once, and the vision encoder's features of each.

Enters: zips of photos, and the boxes of things in them. Leaves: features [views, photos, N, F] at
the encoder's native size, its class probabilities and, pooled, windows at high resolution and crops
in which a thing is larger, or was first made smaller and pasted into another photo. After its
fine-tuning the encoder is frozen, so its views are computed once and not per question.

A crowded image is asked about by places and sizes and is labelled with all that it shows: neither
holds of a mirrored or cropped one, so all its views are the image as it is. Its crops are around
one thing each, and only labels are learned from them.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from skipqa.backbones.networks.efficientnet_lite import EfficientNetLite
from skipqa.backbones.presets.pocket_vision import NATIVE_CELLS
from skipqa.costs.environment import available_cores
from skipqa.errors import UserError
from skipqa.nn.tagger import pool_views, pooled
from skipqa.parallel import InProcess, Workers
from skipqa.training.run import Counted
from skipqa.training.stage1.mixture import Mixture

PIXELS = 256  # the native size
CELLS = NATIVE_CELLS**2
HIGH_RES = 512
WINDOWS = 25  # of 8 x 8 cells, stride 2, on the 16 x 16 at high resolution
PASTED = (0.15, 0.35)  # how wide a thing becomes in another photo
SOFT = 0.12  # of its width, the edge that fades into it
BATCH = {"cuda": 256, "cpu": 16}  # photos; at high resolution 256 need more memory than most have
WHOLE = (0.0, 0.0, 1.0, 1.0)
BOX = torch.float64  # sides are subtracted, and crops have to be the same on every machine
CHUNK = 400  # photos of the native size per job
CROPS = 6  # per photo; as many as a crowded image has things, so that each is cropped
TIGHT = 0.7  # how wide or high a thing of a crowd is in its crop, at least
INSIDE, OUTSIDE, CUT = 1, 0, -1  # what a crop shows of a thing, as labels are written
Job = tuple[Path, list[tuple[int, str]]]  # a zip; rows and names of photos in it


@dataclass(frozen=True, slots=True)
class PhotoFeatures:
    views: Tensor  # [views, P, N, F]; the first view is the photo as it is
    overview: Tensor  # [P, classes], the encoder's own class probabilities
    windows: Tensor  # [P, windows, 2 F], mean and maximum of each, at high resolution
    crops: Tensor  # [crops, P, 2 F], mean and maximum of crops around a thing, or anywhere
    crop_shows: Tensor  # [crops, P, M]: of each thing of the photo, whether the crop shows it


@dataclass(frozen=True, slots=True)
class Things:
    """What is known of photos to crop them. A photo shows at most M things."""

    boxes: Tensor  # [P, M, 4] left, top, right, bottom; the whole image where nothing is known
    count: Tensor  # [P] things in the photo; one, the whole image, where nothing is known
    may_mirror: Tensor  # [P] false of flags: mirrored, they are other flags
    whole: Tensor  # [P] true of an entity that fills its photo
    grounds: Tensor  # rows of photos of no such thing, to paste one into

    @staticmethod
    def of(mixture: Mixture) -> Things:
        total, shown = len(mixture.photos), mixture.shown()
        most = max(map(len, shown.values()), default=1)
        boxes = torch.tensor(WHOLE, dtype=BOX).repeat(total, most, 1)
        count = torch.ones(total, dtype=torch.long)
        may_mirror = torch.ones(total, dtype=torch.bool)
        whole = torch.zeros(total, dtype=torch.bool)
        for photo, things in shown.items():
            found = [thing.box or WHOLE for thing in things]
            boxes[photo, : len(things)] = torch.tensor(found, dtype=BOX)
            count[photo] = len(things)
            may_mirror[photo] = all(thing.kind != "flag" for thing in things)
        for photo, things in mixture.things.items():
            whole[photo] = all(thing.box is None for thing in things)
        grounds = torch.tensor(sorted(mixture.labels.keys() - mixture.things.keys()))
        return Things(boxes, count, may_mirror, whole, grounds.long())

    @property
    def crowded(self) -> Tensor:
        """[P]"""
        return self.count > 1

    def crops(
        self,
        boxes_BM4: Tensor,
        rows: Tensor,
        which: Tensor,
        generator: torch.Generator,
        least: float = 0.3,
    ) -> tuple[Tensor, Tensor]:
        """Windows [B, 2, 3] around the thing `which` of each photo of `rows`, whose things are in
        these boxes, and what they show of all of them [B, M]."""
        each = torch.arange(len(rows))
        leasts = torch.where(self.crowded[rows], max(least, TIGHT), least)
        windows = zooms(boxes_BM4[each, which], generator, self.may_mirror[rows], leasts)
        shows = _shown(windows, boxes_BM4)
        shows[each, which] = INSIDE  # as far as a crop of what fills its photo goes
        return windows, shows

    def paste(
        self,
        shown: Tensor,
        rows: Tensor,
        pixels: Tensor,
        generator: torch.Generator,
        fraction: float,
    ) -> tuple[Tensor, Tensor]:
        """`shown` are the photos `rows`: that fraction of the things that fill theirs are pasted
        small into another. Also the boxes of all, [B, M, 4]."""
        boxes = self.boxes[rows].to(BOX)
        drawn = torch.rand(len(rows), generator=generator) < fraction
        some = (drawn & self.whole[rows]).nonzero()[:, 0]
        if len(some) == 0 or len(self.grounds) == 0:
            return shown, boxes
        ground = self.grounds[torch.randint(len(self.grounds), some.shape, generator=generator)]
        under = as_input(pixels[ground.to(pixels.device)], shown.device)
        shown = shown.clone()
        shown[some.to(shown.device)], boxes[some, 0] = paste(shown[some], under, generator)
        return shown, boxes


def decode(
    photos: Mapping[tuple[Path, str], int],
    counted: Counted = lambda *_: None,
    size: int | None = None,
) -> Tensor:
    """[P, 3, S, S] bytes, on all cores, at the native size if none is given."""
    size = size or PIXELS
    per_job = max(1, CHUNK * PIXELS**2 // size**2)
    by_archive: dict[Path, list[tuple[int, str]]] = {}
    for (archive, name), row in photos.items():
        by_archive.setdefault(archive, []).append((row, name))
    jobs: list[Job] = [
        (archive, names[start : start + per_job])
        for archive, names in by_archive.items()
        for start in range(0, len(names), per_job)
    ]
    pixels = torch.empty(len(photos), 3, size, size, dtype=torch.uint8)
    done = 0
    for (_, names), found in zip(jobs, _decode_all(jobs, size), strict=True):
        rows = torch.tensor([row for row, _ in names])
        pixels[rows] = torch.from_numpy(found).permute(0, 3, 1, 2)
        done += len(names)
        counted(done, len(photos))
    return pixels


def _decode_all(jobs: list[Job], size: int) -> Iterator[NDArray[np.uint8]]:
    prepare = partial(partial, _decode_some, size)
    few = sum(len(names) for _, names in jobs) < CHUNK  # not worth starting processes for
    with InProcess(prepare) if few else Workers(prepare, available_cores()) as workers:
        yield from workers.map(jobs)


def _decode_some(size: int, job: Job) -> NDArray[np.uint8]:
    archive, names = job
    found = np.empty((len(names), size, size, 3), np.uint8)
    with zipfile.ZipFile(archive) as file:
        for place, (_, name) in enumerate(names):
            try:
                with Image.open(io.BytesIO(file.read(name))) as image:
                    small = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
            except (OSError, zipfile.BadZipFile) as error:
                raise UserError(f"{archive} holds no photo at {name}: {error}") from None
            found[place] = np.asarray(small)
    return found


@torch.inference_mode()
def extract(
    encoder: EfficientNetLite,
    pixels: Tensor,
    things: Things,
    *,
    views: int = 3,
    crops: int = CROPS,
    bfloat16: bool = False,
    counted: Counted = lambda *_: None,
) -> PhotoFeatures:
    """All photos through the encoder, on its device, in half precision on a GPU or if asked to.
    In every third crop a thing that fills its photo is pasted into another first. The crops of a
    crowded image are around its things in turn, first the first."""
    device = next(encoder.parameters()).device
    total, width = len(pixels), encoder.config.features
    half = {"dtype": torch.bfloat16, "device": device}
    half_precision = bfloat16 or device.type == "cuda"
    features = torch.empty(views, total, CELLS, width, **half)  # type: ignore[call-overload]
    windows = torch.empty(total, WINDOWS, 2 * width, **half)  # type: ignore[call-overload]
    cropped = torch.empty(crops, total, 2 * width, **half)  # type: ignore[call-overload]
    shows = torch.empty(crops, *things.boxes.shape[:2], dtype=torch.int8, device=device)
    overview = torch.empty(total, encoder.config.classes, device=device)
    generator, rows = torch.Generator().manual_seed(0), torch.arange(total)

    def encode(shown: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=half_precision):
            found: Tensor = encoder(shown.contiguous(memory_format=torch.channels_last))
        return found

    size = BATCH[device.type]
    for start in range(0, total, size):
        some = slice(start, min(start + size, total))
        plain = as_input(pixels[some], device)
        crowded = things.crowded[some].to(device)[:, None, None, None]
        mirrored = things.may_mirror[some]
        for view in range(views):
            shown = plain
            if view == 1:
                shown = torch.where(mirrored.to(device)[:, None, None, None], plain.flip(3), plain)
            elif view > 1:
                shown = crop(plain, frames(len(plain), generator, mirrored))
            found = encode(torch.where(crowded, plain, shown))
            features[view, some] = found.flatten(2).transpose(1, 2)
            if view == 0:
                logits = encoder.classifier(found.float().mean((2, 3)))
                overview[some] = logits.softmax(-1)
        for number in range(crops):
            small = float(number % 3 == 2)
            shown, boxes = things.paste(plain, rows[some], pixels, generator, small)
            which = number % things.count[some]
            around, inside = things.crops(boxes, rows[some], which, generator)
            cropped[number, some] = pooled(encode(crop(shown, around)).flatten(2).transpose(1, 2))
            shows[number, some] = inside.to(shows)
        high_res = F.interpolate(plain, (HIGH_RES, HIGH_RES), mode="bicubic", antialias=True)
        windows[some] = pool_views(encode(high_res), NATIVE_CELLS).flatten(1, 2)
        counted(some.stop, total)
    return PhotoFeatures(features, overview, windows, cropped, shows)


def as_input(pixels: Tensor, device: torch.device) -> Tensor:
    """Bytes as the encoder's input, in [-1, 1]."""
    return pixels.to(device, non_blocking=True).float() / 127.5 - 1


def paste(things: Tensor, grounds: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each image small on another, all of one size and each anywhere; and where, [B, 4]."""
    size, (least, most) = things.shape[-1], PASTED
    side = round(size * (least + (most - least) * float(torch.rand(1, generator=generator))))
    small = F.interpolate(things, (side, side), mode="bicubic", antialias=True).clamp(-1, 1)
    place = torch.arange(side, device=things.device) + 0.5
    inside = torch.minimum(place, side - place) / max(1.0, SOFT * side)
    mask = inside.clamp(max=1)[:, None] * inside.clamp(max=1)
    corner_B2 = torch.randint(size - side + 1, (len(things), 2), generator=generator)
    scenes = grounds.clone()
    for scene, thing, (left, top) in zip(scenes, small, corner_B2.tolist(), strict=True):
        scene[:, top : top + side, left : left + side].lerp_(thing, mask)
    corners_B4 = torch.cat((corner_B2, corner_B2 + side), dim=1).to(BOX)
    return scenes, corners_B4 / size


def frames(
    count: int, generator: torch.Generator, may_mirror: Tensor, least: float = 0.6
) -> Tensor:
    """[B, 2, 3] windows of between `least` and all of the area, mirrored or not."""

    def draw() -> Tensor:
        return torch.rand(count, generator=generator)

    area = least + (1 - least) * draw()
    width = (area.sqrt() * (0.85 + 0.3 * draw())).clamp(max=1)
    height = (area / width).clamp(max=1)
    across, down = (1 - width) * (2 * draw() - 1), (1 - height) * (2 * draw() - 1)
    return _windows(width, height, across, down, _mirrored(draw(), may_mirror))


def zooms(
    boxes_B4: Tensor, generator: torch.Generator, may_mirror: Tensor, least: float | Tensor = 0.3
) -> Tensor:
    """[B, 2, 3] square windows in which the box is at least `least` wide or high, and whole. A box
    that fills the image is cropped to a quarter of it at most."""
    left, top, right, bottom = boxes_B4.to(BOX).T
    x, y = ((left + right) / 2).float(), ((top + bottom) / 2).float()
    w, h = (right - left).float(), (bottom - top).float()

    def draw() -> Tensor:
        return torch.rand(len(boxes_B4), generator=generator)

    larger = torch.maximum(w, h)
    fills = larger > 0.95
    side = (larger / (least + (1 - least) * draw())).clamp(max=1)
    side = torch.where(fills, 0.5 + 0.5 * draw(), side)

    def middle(centre: Tensor, size: Tensor) -> Tensor:
        """Anywhere such that box and window are inside; of what fills the image, the window."""
        low = torch.where(fills, side / 2, torch.maximum(side / 2, centre + size / 2 - side / 2))
        high = torch.where(
            fills, 1 - side / 2, torch.minimum(1 - side / 2, centre - size / 2 + side / 2)
        )
        return low + (high - low) * draw()

    across, down = 2 * middle(x, w) - 1, 2 * middle(y, h) - 1
    return _windows(side, side, across, down, _mirrored(draw(), may_mirror))


def _shown(windows_B23: Tensor, boxes_BM4: Tensor) -> Tensor:
    """[B, M]: whether a window has all of a box but an edge of it, nothing, or a part."""
    middle = (windows_B23[:, :, 2].to(BOX) + 1) / 2
    half = windows_B23[:, (0, 1), (0, 1)].abs().to(BOX) / 2
    low_BM2, high_BM2 = boxes_BM4.to(BOX).unflatten(2, (2, 2)).unbind(2)
    inside = torch.minimum(high_BM2, (middle + half)[:, None]) - torch.maximum(
        low_BM2, (middle - half)[:, None]
    )
    part_BM = inside.clamp(min=0).prod(2) / (high_BM2 - low_BM2).prod(2)
    shows = torch.where(part_BM > 0.9, INSIDE, CUT)
    return torch.where(part_BM > 0, shows, OUTSIDE)


def _mirrored(draw: Tensor, may_mirror: Tensor) -> Tensor:
    return torch.where((draw < 0.5) & may_mirror, -1.0, 1.0)


def _windows(width: Tensor, height: Tensor, across: Tensor, down: Tensor, sign: Tensor) -> Tensor:
    window = torch.zeros(len(width), 2, 3)
    window[:, 0, 0], window[:, 1, 1] = width * sign, height
    window[:, 0, 2], window[:, 1, 2] = across, down
    return window


def crop(pixels: Tensor, windows_B23: Tensor) -> Tensor:
    """Each image's window, as large as the image."""
    grid = F.affine_grid(windows_B23.to(pixels.device), list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, align_corners=False, padding_mode="reflection")
