"""MobileSAM's image encoder: TinyViT in plain torch, batch norms folded into convolutions.

Enters: normalised pixels [B, 3, S, S]. Leaves: a feature map [B, D, S / 16, S / 16]. The first
stage is convolutional; the later ones attend within windows, and a depthwise convolution passes
information between windows. It knows nothing of prompts or masks.

Shapes: B batch, s cells per side, C width of a stage, w cells per side of a window, n windows in
all, H heads, E head width, D width of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EXPANSION = 4  # of the first stage's blocks and of every feed-forward layer


@dataclass(frozen=True, slots=True)
class Stage:
    width: int
    depth: int
    heads: int = 0  # 0 for a convolutional stage
    window: int = 0
    stride: int = 1  # of the downsampling before the stage


@dataclass(frozen=True, slots=True)
class TinyVitConfig:
    image: int  # pixels per side
    stages: tuple[Stage, ...]
    features: int  # D


MOBILE_SAM = TinyVitConfig(
    1_024,
    (
        Stage(64, 2),
        Stage(128, 2, heads=4, window=7, stride=2),
        Stage(160, 6, heads=5, window=14, stride=2),
        Stage(320, 2, heads=10, window=7),
    ),
    256,
)


class Conv(nn.Conv2d):
    """A convolution padded so that only its stride changes the size."""

    def __init__(self, inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__(inside, outside, kernel, stride, kernel // 2, groups=groups)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of a map [B, C, s, s]."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6)

    def forward(self, x_BCss: Tensor) -> Tensor:
        return super().forward(x_BCss.movedim(1, -1)).movedim(-1, 1)


class ConvBlock(nn.Module):
    """Inverted residual with an activation after the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = EXPANSION * width
        self.expand = Conv(width, hidden, 1)
        self.depthwise = Conv(hidden, hidden, 3, groups=hidden)
        self.project = Conv(hidden, width, 1)

    def forward(self, x_BCss: Tensor) -> Tensor:
        hidden = F.gelu(self.depthwise(F.gelu(self.expand(x_BCss))))
        return F.gelu(x_BCss + self.project(hidden))


class Merge(nn.Module):
    """Downsampling into the next stage: to its width, and to fewer cells by its stride."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.expand = Conv(inside, outside, 1)
        self.depthwise = Conv(outside, outside, 3, stride, groups=outside)
        self.project = Conv(outside, outside, 1)

    def forward(self, x_BCss: Tensor) -> Tensor:
        return self.project(F.gelu(self.depthwise(F.gelu(self.expand(x_BCss)))))


class WindowAttention(nn.Module):
    """Attention among a window's cells, with a learned bias for each distance (|dy|, |dx|)."""

    offset: Tensor  # [w * w, w * w], into the biases

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(heads, window * window))
        place = torch.arange(window * window)
        rows, columns = place // window, place % window
        down, across = rows[:, None] - rows, columns[:, None] - columns
        self.register_buffer("offset", down.abs() * window + across.abs(), persistent=False)

    def forward(self, x_nTC: Tensor) -> Tensor:
        n, T, C = x_nTC.shape
        qkv = self.qkv(self.norm(x_nTC)).view(n, T, self.heads, 3, C // self.heads)
        q_nHTE, k_nHTE, v_nHTE = qkv.permute(3, 0, 2, 1, 4)
        mixed = F.scaled_dot_product_attention(
            q_nHTE, k_nHTE, v_nHTE, attn_mask=self.bias[:, self.offset]
        )
        return self.out(mixed.transpose(1, 2).reshape(n, T, C))


class WindowBlock(nn.Module):
    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.attention = WindowAttention(width, heads, window)
        self.local = Conv(width, width, 3, groups=width)
        self.ffn_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, EXPANSION * width)
        self.down = nn.Linear(EXPANSION * width, width)

    def forward(self, x_BCss: Tensor) -> Tensor:
        x_BssC = x_BCss.movedim(1, -1)
        x_BssC = x_BssC + self._attend(x_BssC)
        x_BssC = self.local(x_BssC.movedim(-1, 1)).movedim(1, -1)
        x_BssC = x_BssC + self.down(F.gelu(self.up(self.ffn_norm(x_BssC))))
        return x_BssC.movedim(-1, 1)

    def _attend(self, x_BssC: Tensor) -> Tensor:
        """A map that does not divide into windows is padded with zeros, which are attended to: the
        network was trained that way."""
        B, side, _, C = x_BssC.shape
        w = self.window
        missing = -side % w
        count = (side + missing) // w
        padded = F.pad(x_BssC, (0, 0, 0, missing, 0, missing))
        windows = padded.view(B, count, w, count, w, C).transpose(2, 3).reshape(-1, w * w, C)
        mixed = self.attention(windows).view(B, count, count, w, w, C).transpose(2, 3)
        return mixed.reshape(B, side + missing, side + missing, C)[:, :side, :side]


class TinyVit(nn.Module):
    def __init__(self, config: TinyVitConfig = MOBILE_SAM) -> None:
        super().__init__()
        self.config = config
        first, *later = config.stages
        self.stem = nn.ModuleList(
            [Conv(3, first.width // 2, 3, 2), Conv(first.width // 2, first.width, 3, 2)]
        )
        self.stages = nn.ModuleList(nn.ModuleList(_blocks(stage)) for stage in config.stages)
        self.merges = nn.ModuleList(
            Merge(before.width, stage.width, stage.stride)
            for before, stage in zip(config.stages, later, strict=False)
        )
        width, features = config.stages[-1].width, config.features
        self.neck = nn.Sequential(
            nn.Conv2d(width, features, 1, bias=False),
            ChannelNorm(features),
            nn.Conv2d(features, features, 3, padding=1, bias=False),
            ChannelNorm(features),
        )

    def forward(self, pixels_B3SS: Tensor) -> Tensor:
        """The feature map [B, D, S / 16, S / 16]."""
        x = self.stem[1](F.gelu(self.stem[0](pixels_B3SS)))
        for number, blocks in enumerate(self.stages):
            if number > 0:
                x = self.merges[number - 1](x)
            for block in blocks:  # type: ignore[attr-defined]
                x = block(x)
        return self.neck(x)


def _blocks(stage: Stage) -> list[nn.Module]:
    if stage.heads == 0:
        return [ConvBlock(stage.width) for _ in range(stage.depth)]
    return [WindowBlock(stage.width, stage.heads, stage.window) for _ in range(stage.depth)]


def from_published_names(state: Mapping[str, Tensor], config: TinyVitConfig) -> dict[str, Tensor]:
    """The published checkpoint renamed, each batch norm folded into the preceding convolution."""
    renamed: dict[str, Tensor] = {}

    def fold(name: str, old: str) -> None:
        norm = f"{old}.bn"
        scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + 1e-5).sqrt()
        renamed[f"{name}.weight"] = state[f"{old}.c.weight"] * scale[:, None, None, None]
        renamed[f"{name}.bias"] = state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale

    def fold_three(name: str, old: str) -> None:
        for part, number in (("expand", 1), ("depthwise", 2), ("project", 3)):
            fold(f"{name}.{part}", f"{old}.conv{number}")

    def take(name: str, old: str) -> None:
        for kind in ("weight", "bias"):
            renamed[f"{name}.{kind}"] = state[f"{old}.{kind}"]

    fold("stem.0", "patch_embed.seq.0")
    fold("stem.1", "patch_embed.seq.2")
    for number, stage in enumerate(config.stages):
        for i in range(stage.depth):
            name, old = f"stages.{number}.{i}", f"layers.{number}.blocks.{i}"
            if stage.heads == 0:
                fold_three(name, old)
                continue
            renamed[f"{name}.attention.bias"] = state[f"{old}.attn.attention_biases"]
            fold(f"{name}.local", f"{old}.local_conv")
            for new, part in _WINDOW_BLOCK.items():
                take(f"{name}.{new}", f"{old}.{part}")
        if number + 1 < len(config.stages):
            fold_three(f"merges.{number}", f"layers.{number}.downsample")
    for i in (0, 2):
        renamed[f"neck.{i}.weight"] = state[f"neck.{i}.weight"]
        take(f"neck.{i + 1}", f"neck.{i + 1}")
    return {name: value.contiguous() for name, value in renamed.items()}


_WINDOW_BLOCK = {
    "attention.norm": "attn.norm",
    "attention.qkv": "attn.qkv",
    "attention.out": "attn.proj",
    "ffn_norm": "mlp.norm",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}


def flops(config: TinyVitConfig = MOBILE_SAM) -> int:
    """FLOPs of one image, a multiply and an add counted as two."""
    first, last, side = config.stages[0], config.stages[-1], config.image // 4
    macs = (2 * side) ** 2 * 27 * first.width // 2 + side**2 * 9 * first.width**2 // 2
    before = None
    for stage in config.stages:
        width = stage.width
        if before is not None:
            macs += side**2 * before.width * width
            side = -(-side // stage.stride)
            macs += side**2 * width * (9 + width)
        if stage.heads == 0:
            per_cell = EXPANSION * width * (2 * width + 9)
            macs += stage.depth * side**2 * per_cell
        else:
            padded = (-(-side // stage.window) * stage.window) ** 2
            attention = padded * width * (4 * width + 2 * stage.window**2)
            macs += stage.depth * (attention + side**2 * width * (9 + 2 * EXPANSION * width))
        before = stage
    macs += side**2 * config.features * (last.width + 9 * config.features)
    return 2 * macs
