"""Boxes around whatever lies at given points of an image, by MobileSAM.

Enters: an image and points on it. Leaves: one box per point, and the FLOPs. It knows how
MobileSAM's pixels are prepared and how a mask becomes a box, and nothing of tokens or regions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from skipqa.assets import Report
from skipqa.backbones.networks import mobile_sam
from skipqa.backbones.weights import convert, loading
from skipqa.types import Box

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet's pixels
SPECKS = 0.01  # the fraction of a mask that its box may leave out at each side

Point = tuple[float, float]  # across and down, as fractions of the image


class Proposals(NamedTuple):
    boxes: list[Box]  # one per point
    flops: int


class Segmenter:
    """The network is fetched and loaded on first use."""

    def __init__(self, report: Report = lambda _: None) -> None:
        self.report = report

    @cached_property
    def network(self) -> mobile_sam.MobileSam:
        folder = convert.segmenter(self.report)
        self.report("finding boxes with MobileSAM: some seconds per image on a CPU")
        network = loading.load(mobile_sam.MobileSam, folder)
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def boxes(self, image: Image.Image, points: Sequence[Point]) -> Proposals:
        """For each point the box of its mask with the best predicted quality."""
        pixels, width, height = fit(image, self.network.config.encoder.image)
        square = torch.tensor(points) * torch.tensor([width, height])
        masks = self.network(self.network.encode(pixels), square)
        numbers, side = torch.arange(len(points)), masks.logits.shape[-1]
        columns, rows = math.ceil(width * side), math.ceil(height * side)
        column, row = (square * side).long().T
        chosen = masks.logits[numbers, masks.quality.argmax(1), :rows, :columns] > 0
        # A point belongs to its mask even where the network finds none.
        chosen[numbers, row.clamp(max=rows - 1), column.clamp(max=columns - 1)] = True
        found = [mask_box(mask) for mask in chosen]
        return Proposals(found, mobile_sam.flops(self.network.config, len(points)))


def fit(image: Image.Image, size: int) -> tuple[Tensor, float, float]:
    """Pixels [1, 3, size, size] with the image at the top left, scaled to fill the longer side, and
    the fractions of the square's width and height that it takes."""
    scale = size / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    small = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.asarray(small, dtype=np.float32))
    pixels = ((pixels - torch.tensor(MEAN)) / torch.tensor(STD)).permute(2, 0, 1)[None]
    padded = F.pad(pixels, (0, size - width, 0, size - height))
    return (
        padded.contiguous(memory_format=torch.channels_last),
        width / size,
        height / size,
    )


def mask_box(mask_hw: Tensor) -> Box:
    """The box around a mask, stray specks left out."""
    (left, right), (top, bottom) = (_extent(mask_hw.sum(axis)) for axis in (0, 1))
    height, width = mask_hw.shape
    return left / width, top / height, right / width, bottom / height


def _extent(counts: Tensor) -> tuple[int, int]:
    """Where the mask begins and ends along one axis, `SPECKS` of it left out at either end."""
    reached = counts.cumsum(0) / counts.sum()
    return int((reached <= SPECKS).sum()), int((reached < 1 - SPECKS).sum()) + 1
