"""LoRA: trainable factors beside the matrices of a frozen network, y = W x + alpha / r U^T D x.

Enters: a network, and which of its linear modules get factors. Leaves: an `Adapter`, a module of
the factors alone, so that optimiser, moving average and checkpoints know nothing else; and what it
learned as a delta that `low_rank.py` applies. The network is changed only while the adapter stands
beside it, by forward hooks. It knows no network: where one stores several projections as one matrix
(q|k|v), they have one pair of factors, and share the down factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.config import Between, Fraction
from skipqa.nn.low_rank import DOWN, UP, balanced

WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class LoraConfig:
    rank: Annotated[int, Between(1, 256)] = 32
    scale: Annotated[float, Between(0.01, 64.0)] = 2.0  # alpha / r
    dropout: Fraction = 0.05  # of what the factors read
    mlp: bool = False  # also the feed-forward matrices, besides q, k, v and o


class Factors(nn.Module):
    """Of one matrix: up [r, out] and down [r, in]."""

    def __init__(self, up: Tensor, down: Tensor, scale: float = 1.0, dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(up), nn.Parameter(down)
        self.scale, self.dropout = scale, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(self.dropout(x), self.down), self.up.T) * self.scale


class Adapter(nn.Module):
    """Factors by the names of the modules that they stand beside."""

    def __init__(self, factors: Mapping[str, Factors]) -> None:
        super().__init__()
        self.names = tuple(factors)
        self.factors = nn.ModuleList(factors.values())

    @staticmethod
    def start(network: nn.Module, names: Iterable[str], config: LoraConfig) -> Adapter:
        """Changes nothing yet: up is zero, and down drawn from torch's generator."""
        found: dict[str, Factors] = {}
        for name in names:
            weight = network.get_parameter(name + WEIGHT)
            outputs, inputs = weight.shape
            down = torch.empty(config.rank, inputs, device=weight.device)
            nn.init.kaiming_uniform_(down, a=math.sqrt(5))
            up = torch.zeros(config.rank, outputs, device=weight.device)
            found[name] = Factors(up, down, config.scale, config.dropout)
        return Adapter(found)

    @staticmethod
    def of(delta: Mapping[str, Tensor], device: torch.device) -> Adapter:
        """With what `delta` gave, or a file of that."""
        names = [name.removesuffix(WEIGHT + UP) for name in delta if name.endswith(WEIGHT + UP)]
        parts = {name: (delta[name + WEIGHT + UP], delta[name + WEIGHT + DOWN]) for name in names}
        found = {
            name: Factors(up.float().to(device), down.float().to(device))
            for name, (up, down) in parts.items()
        }
        return Adapter(found).eval().requires_grad_(False)

    @contextmanager
    def beside(self, network: nn.Module) -> Iterator[None]:
        """In the block the network computes with the factors."""
        pairs = zip(self.names, self.factors, strict=True)
        hooks = [
            network.get_submodule(name).register_forward_hook(partial(_add, factors))
            for name, factors in pairs
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def delta(self) -> dict[str, Tensor]:
        """What it adds to the matrices, as `low_rank.apply` takes it."""
        found: dict[str, Tensor] = {}
        for name, factors in zip(self.names, self.factors, strict=True):
            assert isinstance(factors, Factors)
            up, down = balanced(factors.scale * factors.up, factors.down)
            found[name + WEIGHT + UP], found[name + WEIGHT + DOWN] = up, down
        return found


def _add(factors: nn.Module, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    more: Tensor = factors(inputs[0])
    return output + more.to(output.dtype)
