"""What a picture shows, in words beyond the vision tower's own classes.

Enters: a feature map of the whole picture as tokens [..., N, F]. Leaves: one logit a name, each
judged by itself, because a picture shows many things. It knows nothing of questions or places.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class TaggerConfig:
    names: tuple[str, ...]
    kinds: tuple[str, ...]  # of each name, in a word; empty where the name says it
    width: int = 1_280
    hidden: int = 512
    dropout: float = 0.5

    def word(self, index: int) -> str:
        """The name as one would say it of a picture."""
        name = self.names[index]
        return f"flag of {name}" if self.kinds[index] == "flag" else name


class Tagger(nn.Module):
    def __init__(self, config: TaggerConfig) -> None:
        super().__init__()
        self.config = config
        self.standardise = nn.BatchNorm1d(2 * config.width, affine=False)
        self.dropout = nn.Dropout(config.dropout)
        self.up = nn.Linear(2 * config.width, config.hidden)
        self.out = nn.Linear(config.hidden, len(config.names))

    def forward(self, features_BNF: Tensor) -> Tensor:
        """The mean tells the scene, the maximum what is somewhere in it: [B, names]."""
        pooled = torch.cat((features_BNF.mean(-2), features_BNF.amax(-2)), dim=-1)
        hidden = F.gelu(self.up(self.dropout(self.standardise(pooled))))
        return self.out(self.dropout(hidden))


def flops(config: TaggerConfig) -> int:
    """FLOPs of one picture, a multiply and an add counted as two."""
    return 2 * config.hidden * (2 * config.width + len(config.names))
