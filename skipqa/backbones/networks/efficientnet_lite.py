"""The pocket vision encoder: EfficientNet-Lite2 in plain torch, batch norms folded in.

Enters: pixels [B, 3, S, S] in [-1, 1]. Leaves: the last feature map. Global average pooling and
the classifier commute, so the classifier can be applied to every cell: the mean of the cells'
logits equals the network's own logits. It knows nothing of tokens or questions.

Shapes: B batch, F features (1280), h = w = S / 32 cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class EfficientNetLiteConfig:
    width: float = 1.1
    depth: float = 1.2
    native_size: int = 260
    features: int = 1_280
    classes: int = 1_000


LITE2 = EfficientNetLiteConfig()

# repeats, kernel, stride, expansion, channels out; scaled by width and depth except at both ends
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM = 32


class Conv(nn.Conv2d):
    """A convolution with TensorFlow's padding: with a stride, the odd pixel goes last."""

    def __init__(self, inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1):
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(inside, outside, kernel, stride, padding, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride[0] > 1:
            kernel, stride, size = self.kernel_size[0], self.stride[0], x.shape[-1]
            total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            before, after = total // 2, total - total // 2
            x = F.pad(x, (before, after, before, after))
        return super().forward(x)


class Block(nn.Module):
    """Inverted residual: expand, convolve depthwise, project."""

    def __init__(self, inside: int, outside: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inside * expansion
        self.expand = Conv(inside, hidden, 1) if expansion > 1 else None
        self.depthwise = Conv(hidden, hidden, kernel, stride, groups=hidden)
        self.project = Conv(hidden, outside, 1)
        self.residual = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        y = self.project(F.relu6(self.depthwise(y), inplace=True))
        return x + y if self.residual else y


class EfficientNetLite(nn.Module):
    def __init__(self, config: EfficientNetLiteConfig = LITE2) -> None:
        super().__init__()
        self.config = config
        self.stem = Conv(3, _STEM, 3, 2)
        blocks: list[Block] = []
        channels = _STEM
        for number, (repeats, kernel, stride, expansion, outside) in enumerate(_STAGES):
            outside = _round_to_8(outside * config.width)
            if 0 < number < len(_STAGES) - 1:
                repeats = math.ceil(repeats * config.depth)
            for repeat in range(repeats):
                first = repeat == 0
                blocks.append(Block(channels, outside, kernel, stride if first else 1, expansion))
                channels = outside
        self.blocks = nn.ModuleList(blocks)
        self.head = Conv(channels, config.features, 1)
        self.classifier = nn.Linear(config.features, config.classes)

    def forward(self, pixels_B3SS: Tensor) -> Tensor:
        """The feature map [B, F, h, w]."""
        x = F.relu6(self.stem(pixels_B3SS), inplace=True)
        for block in self.blocks:
            x = block(x)
        return F.relu6(self.head(x), inplace=True)


def _round_to_8(channels: float) -> int:
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def fold(state: Mapping[str, Tensor], config: EfficientNetLiteConfig = LITE2) -> dict[str, Tensor]:
    """The published checkpoint renamed, each batch norm folded into the preceding convolution."""
    folded: dict[str, Tensor] = {}

    def take(new: str, conv: str, norm: str) -> None:
        scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + 1e-3).sqrt()
        folded[f"{new}.weight"] = state[f"{conv}.weight"] * scale[:, None, None, None]
        folded[f"{new}.bias"] = state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale

    take("stem", "_conv_stem", "_bn0")
    for i, block in enumerate(EfficientNetLite(config).blocks):
        old, new = f"_blocks.{i}", f"blocks.{i}"
        if block.expand is not None:
            take(f"{new}.expand", f"{old}._expand_conv", f"{old}._bn0")
        take(f"{new}.depthwise", f"{old}._depthwise_conv", f"{old}._bn1")
        take(f"{new}.project", f"{old}._project_conv", f"{old}._bn2")
    take("head", "_conv_head", "_bn1")
    folded["classifier.weight"] = state["_fc.weight"]
    folded["classifier.bias"] = state["_fc.bias"]
    return {name: value.to(torch.float32).contiguous() for name, value in folded.items()}


def flops(network: EfficientNetLite, size: int) -> int:
    """FLOPs of one image of `size` pixels per side, with the classifier at every cell."""

    def conv(layer: Conv, size: int) -> tuple[int, int]:
        size = math.ceil(size / layer.stride[0])
        return 2 * layer.weight.numel() * size * size, size

    total = 0
    for layer in network.modules():  # registered in the order of the forward pass
        if isinstance(layer, Conv):
            cost, size = conv(layer, size)
            total += cost
    return total + 2 * network.classifier.weight.numel() * size * size
