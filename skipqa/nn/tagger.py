"""What a view shows, in words beyond the vision encoder's own classes.

Enters: the mean and the maximum of a view's features, [..., 2 F], the view being a whole image
or a window of a finer map. Leaves: one logit a name, each judged by itself, because a view shows
many things. It knows nothing of questions or places.
"""

from __future__ import annotations

import re
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
    text_width: int = 384  # of the space that questions and passages are compared in
    dropout: float = 0.5

    def word(self, index: int) -> str:
        return said_of_a_picture(self.names[index], self.kinds[index])


def said_of_a_picture(name: str, kind: str) -> str:
    """The name as one would say it of an image: a country is shown by its flag."""
    return f"flag of {name}" if kind == "flag" else name


def bare_name(said: str) -> str:
    """What `said_of_a_picture` was told; a flag's country without its article."""
    return re.sub(r"^flag of (the )?", "", said)


class Tagger(nn.Module):
    meanings: Tensor

    def __init__(self, config: TaggerConfig) -> None:
        super().__init__()
        self.config = config
        self.standardise = nn.BatchNorm1d(2 * config.width, affine=False)
        self.dropout = nn.Dropout(config.dropout)
        self.up = nn.Linear(2 * config.width, config.hidden)
        self.out = nn.Linear(config.hidden, len(config.names))
        # What the words mean, unit length: kept here so that no start has to encode them again
        self.register_buffer("meanings", torch.zeros(len(config.names), config.text_width))

    @property
    def num_known(self) -> int:
        """Names that it was trained on."""
        return len(self.config.names)

    def forward(self, features_BNF: Tensor) -> Tensor:
        """Of images given as tokens: [B, names]."""
        return self.judge(pooled(features_BNF))

    def judge(self, pooled: Tensor) -> Tensor:
        """Of views given by mean and maximum [..., 2 F]: [..., names]."""
        return self.name(self.hidden(pooled))

    def hidden(self, pooled: Tensor) -> Tensor:
        """[..., hidden]"""
        standard = self.standardise(pooled.flatten(0, -2)).view_as(pooled)
        return F.gelu(self.up(self.dropout(standard)))

    def name(self, hidden: Tensor) -> Tensor:
        return self.out(self.dropout(hidden))


def pooled(features_BNF: Tensor) -> Tensor:
    """[B, 2 F] of views by token: their mean tells the scene, the maximum what is somewhere."""
    return torch.cat((features_BNF.mean(-2), features_BNF.amax(-2)), dim=-1)


def pool_views(map_BFhw: Tensor, size: int) -> Tensor:
    """[B, h', w', 2 F]: mean and maximum of `size` x `size` views of maps, at every second cell."""
    size = min(size, map_BFhw.shape[-1])
    pooled = F.avg_pool2d(map_BFhw, size, stride=2), F.max_pool2d(map_BFhw, size, stride=2)
    return torch.cat(pooled, dim=1).permute(0, 2, 3, 1)


def flops(config: TaggerConfig, views: int = 1) -> int:
    """FLOPs of judging so many views, a multiply and an add counted as two."""
    return 2 * views * config.hidden * (2 * config.width + len(config.names))
