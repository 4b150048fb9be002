"""Photos decoded once, and what the frozen vision tower sees in each.

Enters: zips of photos. Leaves: features [views, photos, N, F] of the whole picture at the tower's
native size and its class evidence. A picture is seen plainly, mirrored and cropped: the tower is
not trained, so that its views can be kept instead of computed again for every question.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from skipqa.backbones.efficientnet_lite import EfficientNetLite
from skipqa.errors import UserError
from skipqa.training.run import Counted

PIXELS = 256  # the native size: 8 x 8 cells
CELLS = (PIXELS // 32) ** 2
BATCH = 256
CHUNK = 400  # photos a worker decodes at once
Job = tuple[Path, list[tuple[int, str]]]  # a zip; rows and names of photos in it


@dataclass(frozen=True, slots=True)
class Seen:
    features: Tensor  # [views, P, N, F]; the first view is the picture as it is
    overview: Tensor  # [P, classes], the tower's own evidence


def decode(photos: Mapping[tuple[Path, str], int], counted: Counted = lambda *_: None) -> Tensor:
    """[P, 3, S, S] bytes, on all cores."""
    by_archive: dict[Path, list[tuple[int, str]]] = {}
    for (archive, name), row in photos.items():
        by_archive.setdefault(archive, []).append((row, name))
    jobs: list[Job] = [
        (archive, wanted[start : start + CHUNK])
        for archive, wanted in by_archive.items()
        for start in range(0, len(wanted), CHUNK)
    ]
    pixels = torch.empty(len(photos), 3, PIXELS, PIXELS, dtype=torch.uint8)
    done = 0
    for (_, wanted), found in zip(jobs, _decode_all(jobs, len(photos)), strict=True):
        rows = torch.tensor([row for row, _ in wanted])
        pixels[rows] = torch.from_numpy(found).permute(0, 3, 1, 2)
        done += len(wanted)
        counted(done, len(photos))
    return pixels


def _decode_all(jobs: list[Job], photos: int) -> Iterable[NDArray[np.uint8]]:
    if photos < CHUNK:  # not worth starting processes for
        yield from map(_decode_some, jobs)
    else:
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            yield from pool.map(_decode_some, jobs)


def _decode_some(job: Job) -> NDArray[np.uint8]:
    archive, wanted = job
    found = np.empty((len(wanted), PIXELS, PIXELS, 3), np.uint8)
    with zipfile.ZipFile(archive) as file:
        for place, (_, name) in enumerate(wanted):
            try:
                with Image.open(io.BytesIO(file.read(name))) as image:
                    small = image.convert("RGB").resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
            except (OSError, zipfile.BadZipFile) as error:
                raise UserError(f"{archive} holds no photo at {name}: {error}") from None
            found[place] = np.asarray(small)
    return found


@torch.inference_mode()
def see(
    tower: EfficientNetLite,
    pixels: Tensor,
    device: torch.device,
    *,
    views: int = 3,
    counted: Counted = lambda *_: None,
) -> Seen:
    """All photos through the tower, in half precision where the device computes in it."""
    total = len(pixels)
    features = torch.empty(
        views, total, CELLS, tower.config.features, dtype=torch.bfloat16, device=device
    )
    overview = torch.empty(total, tower.config.classes, device=device)
    generator = torch.Generator().manual_seed(0)
    for start in range(0, total, BATCH):
        some = slice(start, min(start + BATCH, total))
        plain = pixels[some].to(device).float() / 127.5 - 1
        for view in range(views):
            shown = _view(plain, view, generator)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                found = tower(shown.contiguous(memory_format=torch.channels_last))
            features[view, some] = found.flatten(2).transpose(1, 2)
            if view == 0:
                logits = tower.classifier(found.float().mean((2, 3)))
                overview[some] = logits.softmax(-1)
        counted(some.stop, total)
    return Seen(features, overview)


def _view(plain: Tensor, number: int, generator: torch.Generator) -> Tensor:
    if number == 0:
        return plain
    return plain.flip(3) if number == 1 else _cropped(plain, generator)


def _cropped(pixels: Tensor, generator: torch.Generator, least: float = 0.6) -> Tensor:
    """Each picture cropped to between `least` and all of its area, mirrored or not."""
    count, device = len(pixels), pixels.device

    def draw() -> Tensor:
        return torch.rand(count, generator=generator).to(device)

    area = least + (1 - least) * draw()
    width = (area.sqrt() * (0.85 + 0.3 * draw())).clamp(max=1)
    height = (area / width).clamp(max=1)
    window = torch.zeros(count, 2, 3, device=device)
    window[:, 0, 0] = width * torch.where(draw() < 0.5, -1.0, 1.0)
    window[:, 1, 1] = height
    window[:, 0, 2] = (1 - width) * (2 * draw() - 1)
    window[:, 1, 2] = (1 - height) * (2 * draw() - 1)
    grid = F.affine_grid(window, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, align_corners=False, padding_mode="reflection")
