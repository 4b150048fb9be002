"""Boxes around whatever lies at given points of a picture, by MobileSAM.

Enters: a picture and points on it. Leaves: one box a point and the FLOPs spent. It knows how
MobileSAM wants its pixels and how a mask becomes a box, and nothing of tokens or regions.
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
SPECKS = 0.01  # the share of a mask at each side that its box may leave out

Point = tuple[float, float]  # across and down, as fractions of the picture


class Proposals(NamedTuple):
    boxes: list[Box]  # one a point
    flops: int


class Segmenter:
    """The network is fetched and loaded when it is first used."""

    def __init__(self, report: Report = lambda _: None) -> None:
        self.report = report

    @cached_property
    def network(self) -> mobile_sam.MobileSam:
        folder = convert.segmenter(self.report)
        self.report("looking for boxes with MobileSAM: some seconds a picture on a CPU")
        network = loading.load(mobile_sam.MobileSam, folder)
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def boxes(self, image: Image.Image, points: Sequence[Point]) -> Proposals:
        """For each point the box of the mask there that the network thinks best of."""
        pixels, width, height = fit(image, self.network.config.encoder.image)
        square = torch.tensor(points) * torch.tensor([width, height])
        masks = self.network(self.network.encode(pixels), square)
        numbers, side = torch.arange(len(points)), masks.logits.shape[-1]
        columns, rows = math.ceil(width * side), math.ceil(height * side)
        column, row = (square * side).long().T
        chosen = masks.logits[numbers, masks.quality.argmax(1), :rows, :columns] > 0
        # A point belongs to its mask even where the network sees nothing.
        chosen[numbers, row.clamp(max=rows - 1), column.clamp(max=columns - 1)] = True
        found = [mask_box(mask) for mask in chosen]
        return Proposals(found, mobile_sam.flops(self.network.config, len(points)))


def fit(image: Image.Image, size: int) -> tuple[Tensor, float, float]:
    """Pixels [1, 3, size, size], the picture at the top left with its longer side filled, and
    how much of the square's width and height it takes."""
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
    """The box that holds a mask but for stray specks."""
    (left, right), (top, bottom) = (_extent(mask_hw.sum(axis)) for axis in (0, 1))
    height, width = mask_hw.shape
    return left / width, top / height, right / width, bottom / height


def _extent(counts: Tensor) -> tuple[int, int]:
    """Where along one axis the mask begins and ends, `SPECKS` of it left out at either end."""
    reached = counts.cumsum(0) / counts.sum()
    return int((reached <= SPECKS).sum()), int((reached < 1 - SPECKS).sum()) + 1
