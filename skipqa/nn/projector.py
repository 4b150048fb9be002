"""The projector: visual tokens into the width of the decoder.

Enters: tokens [..., V, d_vision]. Leaves: tokens [..., V, d_model]. Two layers, as in the paper
(1408 -> 4096). The paper's runs before pruning, where QVS multiplies tokens with the question in
one width; the pipeline prunes and fuses in the text encoder's width and projects what is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class ProjectorConfig:
    vision_width: int
    width: int
    # What it was trained to read: a kept token's features, or the token as fusion left it
    reads: Literal["features", "fused"] = "features"


class Projector(nn.Module):
    def __init__(self, config: ProjectorConfig) -> None:
        super().__init__()
        self.config = config
        self.up = nn.Linear(config.vision_width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(F.gelu(self.up(tokens)))


def flops(config: ProjectorConfig, num_tokens: int) -> int:
    """FLOPs of one image, a multiply and an add counted as two."""
    return 2 * num_tokens * config.width * (config.vision_width + config.width)
