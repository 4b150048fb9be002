"""Which words of a question stand for the thing: "these animals", "the item in his hand".

Enters: the states of the question's tokens [..., T, D]. Leaves: a logit for each that it is one of
these words, and of one question the run of tokens with the largest sum. It never sees the image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class SpanConfig:
    width: int = 384


class SpanHead(nn.Module):
    def __init__(self, config: SpanConfig) -> None:
        super().__init__()
        self.config = config
        self.inside = nn.Linear(config.width, 1)

    def forward(self, states: Tensor) -> Tensor:
        return self.inside(states)[..., 0]

    @torch.inference_mode()
    def find(self, states_TD: Tensor, least: float = 0.0) -> tuple[int, int] | None:
        """The first token and the one after the last; None where no run of tokens is probable. The
        first and the last token of a question are no words."""
        return best_run(self(states_TD).tolist(), least)


def best_run(logits: list[float], least: float = 0.0) -> tuple[int, int] | None:
    """The run with the largest sum above `least`, without the first and the last; ties go to the
    first."""
    best, found, total, start = least, None, 0.0, 1
    for place, logit in enumerate(logits[1:-1], 1):
        if total <= 0:
            total, start = 0.0, place
        total += logit
        if total > best:
            best, found = total, (start, place + 1)
    return found


def flops(config: SpanConfig, num_tokens: int) -> int:
    """A multiply-add counts as two."""
    return 2 * config.width * num_tokens
