"""How to read what is looked up: the expected score of each way, and what it costs.

Enters: what a budget controller reads, [..., W]. Leaves: the expected score of every way to read,
and the way of the highest score less the price of its cost. The costs are measured, relative to
reading text, and the price is chosen on held-out questions; stage V stores both next to the
weights. It does not know in which of these ways a decoder can read: that is said when it chooses.

Shape letters: W what is known, R ways to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor, nn

from skipqa.nn.budget import joined
from skipqa.nn.relaxation import widened
from skipqa.types import ReadAs

WAYS: tuple[ReadAs, ...] = get_args(ReadAs)
TEXT = WAYS.index("text")


@dataclass(frozen=True, slots=True)
class ReadingChoiceConfig:
    visual_width: int
    question_width: int
    signals: int
    hidden: int = 32


class ReadingChoice(nn.Module):
    cost: Tensor  # [R] mean FLOPs of a question, relative to text
    price: Tensor  # [] of that, in score

    def __init__(self, config: ReadingChoiceConfig) -> None:
        super().__init__()
        self.config = config
        self.trunk = nn.Sequential(nn.Linear(_width(config), config.hidden), nn.GELU())
        self.score = nn.Linear(config.hidden, len(WAYS))
        self.register_buffer("cost", torch.ones(len(WAYS)))
        self.register_buffer("price", torch.zeros(()))

    def start_from(self, score_R: Tensor, giga_R: Tensor) -> None:
        """Begin with the mean scores, so with the best fixed way; the costs are stored."""
        with torch.no_grad():
            self.score.weight.mul_(0.01)  # not 0, which would leave the trunk without a gradient
            self.score.bias.copy_(score_R)
            self.cost.copy_(giga_R / giga_R[TEXT])

    def forward(self, visual: Tensor, question: Tensor, signals: Tensor) -> Tensor:
        """The expected scores [..., R]."""
        return widened(self.score(self.trunk(joined(visual, question, signals))))

    def choose(self, expected_R: Tensor, ways: Sequence[ReadAs]) -> ReadAs:
        """One of these ways."""
        open_R = torch.tensor([way in ways for way in WAYS])
        return WAYS[int(best_ways(expected_R, self.cost, self.price, open_R))]


def best_ways(expected: Tensor, cost: Tensor, price: Tensor, open_R: Tensor) -> Tensor:
    """Places [...] among WAYS, of expected scores and costs [..., R] and prices [...]. Of equally
    good ones the cheapest."""
    worth = (expected - price[..., None] * cost).masked_fill(~open_R, -torch.inf)
    best = worth == worth.amax(-1, keepdim=True)
    return cost.expand_as(worth).masked_fill(~best, torch.inf).argmin(-1)


def flops(config: ReadingChoiceConfig) -> int:
    """Of one question, a multiply and an add counted as two."""
    return 2 * config.hidden * (_width(config) + len(WAYS))


def _width(config: ReadingChoiceConfig) -> int:
    return config.visual_width + config.question_width + config.signals
