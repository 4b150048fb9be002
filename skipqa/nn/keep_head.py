"""A question-blind rival of QVS: which tokens an image could do without, by DynamicViT's head.

Enters: visual tokens [..., V, D], those that QVS reads. Leaves: one logit per token, from what the
token is and what the whole image is (Rao et al., 2021). It never sees the question.

Left out of the paper's: pruning inside the encoder layer by layer, Gumbel gates trained through it
with distillation. `training/pathway/stage2_saliency.py` trains this head alone, as it trains QVS.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class KeepHeadConfig:
    width: int
    hidden: int = 256


class KeepHead(nn.Module):
    def __init__(self, config: KeepHeadConfig) -> None:
        super().__init__()
        self.config = config
        D, H = config.width, config.hidden
        self.norm = nn.LayerNorm(D)
        self.inner = nn.Linear(D, H)
        self.mix = nn.Linear(H, H // 2)
        self.out = nn.Linear(H // 2, 1)

    def forward(self, visual: Tensor) -> Tensor:
        # One half of the hidden units describes the token, the mean of the other half the image.
        local, shared = F.gelu(self.inner(self.norm(visual))).chunk(2, dim=-1)
        both = torch.cat((local, shared.mean(-2, keepdim=True).expand_as(shared)), dim=-1)
        return self.out(F.gelu(self.mix(both)))[..., 0]


def flops(config: KeepHeadConfig, num_tokens: int) -> int:
    """FLOPs of scoring one image, a multiply and an add counted as two."""
    D, H = config.width, config.hidden
    return 2 * num_tokens * (D * H + H * (H // 2) + H // 2)
