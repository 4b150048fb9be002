"""What one cell of an image shows, among the tagger's names of things.

Enters: the feature maps of an image at high and at low resolution. Leaves: for each cell of the
finer map logits over the names and, last, over "none of them", which together are one distribution:
a cell shows one thing. It sees the cell, the same place at low resolution, where the encoder is at
its best, and the eight cells around. It knows nothing of questions.

Shapes: B batch, F features, h * w = V cells, N names, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.nn.tagger import TaggerConfig


@dataclass(frozen=True, slots=True)
class CellTaggerConfig:
    names: tuple[str, ...]
    kinds: tuple[str, ...]  # of each name, as the tagger has them
    width: int = 1_280
    hidden: int = 448
    dropout: float = 0.2

    def columns(self, tagger: TaggerConfig) -> list[int]:
        """Where the tagger has these names."""
        place = {thing: i for i, thing in enumerate(zip(tagger.kinds, tagger.names, strict=True))}
        return [place[thing] for thing in zip(self.kinds, self.names, strict=True)]

    def within(self, tagger: TaggerConfig) -> bool:
        known = set(zip(tagger.kinds, tagger.names, strict=True))
        return known.issuperset(zip(self.kinds, self.names, strict=True))


class CellTagger(nn.Module):
    def __init__(self, config: CellTaggerConfig) -> None:
        super().__init__()
        self.config = config
        self.standardise = nn.BatchNorm1d(2 * config.width, affine=False)
        self.dropout = nn.Dropout(config.dropout)
        self.down = nn.Linear(2 * config.width, config.hidden)
        self.around = nn.Conv2d(config.hidden, config.hidden, 3, padding=1, groups=config.hidden)
        self.out = nn.Linear(config.hidden, len(config.names) + 1)

    def forward(self, coarse_BFhw: Tensor, fine_BFhw: Tensor) -> Tensor:
        """[B, V, N + 1]: logits of each cell of the finer map."""
        size = fine_BFhw.shape[2:]
        coarse_BFhw = F.interpolate(coarse_BFhw.float(), size, mode="bilinear")
        both_BVE = torch.cat((fine_BFhw.float(), coarse_BFhw), dim=1).flatten(2).transpose(1, 2)
        standard_BVE = self.standardise(both_BVE.flatten(0, 1)).view_as(both_BVE)
        own_BVH = F.gelu(self.down(self.dropout(standard_BVE)))
        own_BHhw = own_BVH.transpose(1, 2).unflatten(2, size)
        hidden_BVH = own_BVH + F.gelu(self.around(own_BHhw)).flatten(2).transpose(1, 2)
        return self.out(self.dropout(hidden_BVH))

    def probs(self, coarse_BFhw: Tensor, fine_BFhw: Tensor) -> Tensor:
        """[B, V, N]: what is missing to one is the probability of none."""
        return self(coarse_BFhw, fine_BFhw).float().softmax(-1)[..., :-1]

    def rescale(self, temperature: float, none: float) -> None:
        """Logits are divided by the temperature from now on, and that of none is higher."""
        with torch.no_grad():
            self.out.weight.div_(temperature)
            self.out.bias.div_(temperature)
            self.out.bias[-1] += none


def flops(config: CellTaggerConfig, cells: int) -> int:
    """FLOPs of an image with so many cells at high resolution, a multiply and an add counted as
    two."""
    around = 9
    return 2 * cells * config.hidden * (2 * config.width + around + len(config.names) + 1)
