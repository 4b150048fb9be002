"""Weights for a file that people download: matrices at 8 bits per weight, vectors at 16.

Enters: tensors by name. Leaves: the same in a quarter of the bytes, each row of a matrix and each
filter of a convolution with its own scale, and back as float32. An error of at most half a step of
the row's largest weight; it is for shipping, not for computing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE = ".scale"
LEAST = 4_096  # smaller tensors are not worth their scales


def pack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    packed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if not value.is_floating_point():
            packed[name] = value
        elif value.ndim >= 2 and value.numel() >= LEAST:
            packed[name], packed[name + SCALE] = round_rows(value)
        else:
            packed[name] = value.to(torch.float16)
    return packed


def round_rows(value: Tensor) -> tuple[Tensor, Tensor]:
    """In 8 bits, and what to multiply each row with, of as many dimensions."""
    inner = tuple(range(1, value.ndim))
    scale = value.float().abs().amax(inner, keepdim=True).clamp(min=1e-12) / 127
    return (value.float() / scale).round().to(torch.int8), scale


def unpack(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that were never packed come back as they are, in float32 if they were 16 bits."""
    tensors: dict[str, Tensor] = {}
    for name, value in packed.items():
        if name.endswith(SCALE):
            continue
        if value.dtype == torch.int8:
            tensors[name] = value.float() * packed[name + SCALE]
        else:
            tensors[name] = value.float() if value.dtype == torch.float16 else value
    return tensors
