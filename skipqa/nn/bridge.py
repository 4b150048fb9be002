"""Questions of several steps: what a passage has to name before the question can be asked.

Enters: a question's embedding and the states of its tokens; the embedding of the words in it that
stand for a bridge, "the country where this breed comes from"; the states of a passage's tokens.
Leaves: whether the question has such words, and a logit per token that it is one of them; of one
passage the span that names the bridge, "Hungary", with its probability, or none. It knows neither
images nor indexes.

A span is a first and a last token. Both are chosen by a product of low rank of what is asked for
and each token's state; choosing the passage's first token, which is no word, stands for "none".

Shapes: B passages, L tokens of a passage, d text width, R rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from skipqa.nn.span import SpanConfig, SpanHead
from skipqa.nn.span import flops as span_flops

LONGEST = 8  # tokens of a bridge
NONE = 0  # the token that stands for it
LEAST = 1.0  # summed logits of the words for a bridge: 2.5 % of held-out ones have less


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    width: int = 384
    rank: int = 8


class Span(NamedTuple):
    first: int
    end: int  # after the last token
    prob: float


class BridgePointer(nn.Module):
    def __init__(self, config: BridgeConfig) -> None:
        super().__init__()
        self.config = config
        self.steps = nn.Linear(config.width, 1)  # whether the question has several
        self.nested = SpanHead(SpanConfig(config.width))  # its words for the bridge
        self.asked = nn.Linear(config.width, 2 * config.rank)  # for the first token, and the last
        self.told = nn.Linear(config.width, 2 * config.rank, bias=False)
        self.none = nn.Parameter(torch.zeros(2))

    def forward(self, asked_Bd: Tensor, states_BLd: Tensor, there_BL: Tensor) -> Tensor:
        """Log-probabilities [B, 2, L] of the first and the last token. `there_BL` is false where a
        shorter passage is padded."""
        asked_B2R = self.asked(asked_Bd).unflatten(-1, (2, -1))
        told_BL2R = self.told(states_BLd).unflatten(-1, (2, -1))
        logits_B2L = torch.einsum("bsr,blsr->bsl", asked_B2R, told_BL2R)
        none_B2L = torch.zeros_like(logits_B2L)
        none_B2L[:, :, NONE] = 1
        logits_B2L = logits_B2L + none_B2L * self.none[:, None]
        return logits_B2L.masked_fill(~there_BL[:, None], -torch.inf).log_softmax(-1)

    @torch.inference_mode()
    def find_nested(self, embedding_d: Tensor, states_Td: Tensor) -> tuple[int, int] | None:
        """The question's tokens that stand for a bridge, the first and the one after the last; None
        where it is asked in one step."""
        several = float(self.steps(embedding_d)) > 0
        return self.nested.find(states_Td, LEAST) if several else None

    @torch.inference_mode()
    def find(self, asked_d: Tensor, states_Ld: Tensor) -> Span | None:
        """The most probable span of one passage; None where no span is likelier than none."""
        there_1L = torch.ones(1, len(states_Ld), dtype=torch.bool)
        (log_prob_2L,) = self(asked_d[None], states_Ld[None], there_1L)
        return best_span(log_prob_2L)


def best_span(log_prob_2L: Tensor) -> Span | None:
    """Of at most LONGEST tokens; the passage's last token is no word either."""
    first_L, last_L = log_prob_2L
    best = float(first_L[NONE] + last_L[NONE])
    found: tuple[int, int] | None = None
    for first in range(1, len(first_L) - 1):
        lasts = last_L[first : min(first + LONGEST, len(last_L) - 1)]
        value, offset = (first_L[first] + lasts).max(0)
        if float(value) > best:
            best, found = float(value), (first, first + int(offset) + 1)
    return None if found is None else Span(*found, prob=float(torch.tensor(best).exp()))


def nested_flops(config: BridgeConfig, num_tokens: int) -> int:
    """Of one question, a multiply and an add counted as two."""
    return 2 * config.width + span_flops(SpanConfig(config.width), num_tokens)


def flops(config: BridgeConfig, num_tokens: int) -> int:
    """Of one passage, a multiply and an add counted as two."""
    return 2 * 2 * config.rank * (config.width * (num_tokens + 1) + num_tokens)
