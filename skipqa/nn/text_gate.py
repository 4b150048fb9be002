"""Whether reading text may help: two logits of a question, one of each visual token.

Enters: the pooled question [..., D], and how dense strokes of several widths are in and around each
token [..., S]. Leaves: the logits that the question needs text in the image and that it asks what
is written and nothing else, and the logits that a token shows text. Neither sees the other's input;
`stages/text_gate.py` joins them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

FAINT = 1e-3  # a density that is as good as none, where its logarithm is taken


@dataclass(frozen=True, slots=True)
class TextGateConfig:
    text_width: int
    strokes: int = 6  # S: three widths of strokes, in the token and around it


class TextGateHeads(nn.Module):
    def __init__(self, config: TextGateConfig) -> None:
        super().__init__()
        self.config = config
        self.asks = nn.Linear(config.text_width, 2)
        self.shows = nn.Linear(config.strokes, 1)

    def asks_logits(self, question: Tensor) -> Tensor:
        """[..., 2]: for text, and what is written."""
        return self.asks(question)

    def shows_logits(self, strokes: Tensor) -> Tensor:
        return self.shows(torch.log(strokes + FAINT))[..., 0]


def question_flops(config: TextGateConfig) -> int:
    """A multiply-add counts as two."""
    return 2 * 2 * config.text_width


def token_flops(config: TextGateConfig, num_tokens: int) -> int:
    return 2 * config.strokes * num_tokens
