"""QVS: how much each visual token matters to the question, and which tokens stay.

Enters: visual tokens [..., V, D] and the pooled question [..., D] of the same width. Leaves: one
logit per token, from which either the positions of the V' best (inference) or V gates that tend
to them (training). It does not choose V' and touches no pixel.

Both variants fold the question into the weights first, so that a token costs one product:
the sums are those of the paper's equations, only in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.nn.relaxation import gumbel_softmax_top_k, hard_top_k, relaxed_top_k


@dataclass(frozen=True, slots=True)
class SaliencyConfig:
    width: int
    variant: Literal["A", "B"] = "A"
    hidden: int = 256  # of the MLP in A, the width d under the square root in B


class Saliency(nn.Module):
    """What both variants share: from logits to kept tokens."""

    # The relaxed selection, [..., V], of the same arguments as `relaxed_top_k`.
    gates: Callable[..., Tensor]

    def __init__(self, config: SaliencyConfig) -> None:
        super().__init__()
        self.config = config

    @staticmethod
    def select(logits_V: Tensor, count: int) -> Tensor:
        """Positions of the `count` most salient tokens of one image, ascending."""
        return hard_top_k(logits_V, count).nonzero()[:, 0]


class ProductSaliency(Saliency):
    """Variant A, eq. 5: s_i = MLP([v_i ; q ; v_i * q]), relaxed by Gumbel-sigmoid."""

    gates = staticmethod(relaxed_top_k)

    def __init__(self, config: SaliencyConfig) -> None:
        super().__init__(config)
        D, H = config.width, config.hidden
        # The three blocks of the first layer's matrix, of one init: fan-in 3 D.
        bound = (3 * D) ** -0.5
        self.of_token, self.of_question, self.of_product = (
            nn.Parameter(torch.empty(H, D).uniform_(-bound, bound)) for _ in range(3)
        )
        self.bias = nn.Parameter(torch.zeros(H))
        self.out = nn.Linear(H, 1)

    def forward(self, visual: Tensor, question: Tensor) -> Tensor:
        # W1 v + W3 (v * q) = (W1 + W3 diag(q)) v: one product per token instead of three.
        per_token = self.of_token + self.of_product * question[..., None, :]
        constant = F.linear(question, self.of_question, self.bias)
        hidden = visual @ per_token.transpose(-1, -2) + constant[..., None, :]
        return self.out(F.gelu(hidden))[..., 0]


class AlignedSaliency(Saliency):
    """Variant B, eq. B.1: s_i = sigmoid(f_q(Q) . f_v(v_i) / sqrt(d) + w_b . v_i).

    The logits are the sigmoid's argument: same order, and no saturation. Relaxed by
    Gumbel-softmax (eq. D.1).
    """

    gates = staticmethod(gumbel_softmax_top_k)

    def __init__(self, config: SaliencyConfig) -> None:
        super().__init__(config)
        D, H = config.width, config.hidden
        self.of_question = nn.Sequential(nn.Linear(D, H), nn.GELU(), nn.Linear(H, H))
        self.of_token = nn.Linear(D, H, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(D))

    def forward(self, visual: Tensor, question: Tensor) -> Tensor:
        # f_v is linear, so f_q . f_v(v) = (W_v^T f_q) . v: D products per token, not D * H.
        query = self.of_question(question) @ self.of_token.weight / self.config.hidden**0.5
        return (visual @ (query + self.content_bias)[..., None])[..., 0]


def build_saliency(config: SaliencyConfig) -> Saliency:
    return ProductSaliency(config) if config.variant == "A" else AlignedSaliency(config)


def absolute_budget_loss(logits: Tensor, rho: float, weight: float = 0.5) -> Tensor:
    """The main text's regulariser (eq. 6), lambda_1 = 0.5, mean over the batch."""
    return weight * (logits.sigmoid().mean(-1) - rho).abs().mean()


def squared_budget_loss(logits: Tensor, rho: float, weight: float = 0.1) -> Tensor:
    """The appendix's regulariser (stage II), mean over the batch."""
    return weight * (logits.sigmoid().mean(-1) - rho).square().mean()


def flops(config: SaliencyConfig, num_tokens: int) -> int:
    """FLOPs of scoring one image, a multiply and an add counted as two."""
    D, H = config.width, config.hidden
    if config.variant == "A":
        return 2 * (num_tokens * (D * H + H) + D * H)
    return 2 * (num_tokens * D + 2 * D * H + H * H)
