"""SKV, second half: which retrieved passages deserve to be read.

Enters: the pooled question [..., D], the pooled kept tokens [..., D_v] and the passages'
embeddings [..., K, D]. Leaves: one logit a passage, nu_j = sigmoid(logit) (eq. B.6). `judge`
turns any nu_j into the kept set (inference), `gates` into what tends to it (training). It
neither retrieves nor fuses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.nn.relaxation import relaxed_top_k


@dataclass(frozen=True, slots=True)
class VerifierConfig:
    width: int  # of question and passages
    visual_width: int
    hidden: int = 512


@dataclass(frozen=True, slots=True)
class Verdict:
    """Indices into the passages, each group best first; together they are all passages."""

    accepted: Tensor  # nu_j >= threshold, within the limit
    recalled: Tensor  # below the threshold, taken back because coverage was thin
    rejected: Tensor

    @property
    def kept(self) -> Tensor:
        return torch.cat((self.accepted, self.recalled))


class Verifier(nn.Module):
    """The logit of nu_j: a two-layer MLP over [q ; v ; e_j ; e_j * q ; |e_j - q|]."""

    def __init__(self, config: VerifierConfig) -> None:
        super().__init__()
        self.config = config
        # The first layer in two blocks: what all passages share is computed once.
        self.of_query = nn.Linear(config.width + config.visual_width, config.hidden)
        self.of_passage = nn.Linear(3 * config.width, config.hidden, bias=False)
        self.out = nn.Linear(config.hidden, 1)

    def forward(self, question: Tensor, visual: Tensor, passages: Tensor) -> Tensor:
        shared = self.of_query(torch.cat((question, visual), dim=-1))
        q = question[..., None, :]
        own = self.of_passage(torch.cat((passages, passages * q, (passages - q).abs()), dim=-1))
        return self.out(F.gelu(shared[..., None, :] + own))[..., 0]


def judge(nu_K: Tensor, most: int, threshold: float, least: int) -> Verdict:
    """The hard form, for one question: the best `most` of nu_j >= tau_nu.

    A passage under the threshold is recalled only while fewer than `least` are kept: the paper's
    "speculative" rejection.
    """
    order = torch.argsort(nu_K, descending=True, stable=True)
    count = int(_kept_count(nu_K, most, threshold, least))
    passed = min(count, int((nu_K >= threshold).sum()))
    return Verdict(order[:passed], order[passed:count], order[count:])


def gates(
    logits: Tensor,
    most: int,
    threshold: float,
    least: int,
    temperature: float,
    noise: Tensor | None = None,
) -> Tensor:
    """The relaxed form, [..., K]: the kept set is always a prefix of the ranking, so it is a
    relaxed top-k with the hard form's count."""
    count = _kept_count(logits.sigmoid(), most, threshold, least)
    return relaxed_top_k(logits, count, temperature, noise)


def _kept_count(nu: Tensor, most: int, threshold: float, least: int) -> Tensor:
    most = min(most, nu.shape[-1])
    return (nu >= threshold).sum(-1).clamp(min(least, most), most)


def distillation_loss(logits: Tensor, oracle: Tensor) -> Tensor:
    """Stage IV: cross-entropy against the dense oracle's soft labels (eq. D.4), clipped to
    [0, 1] because one passage alone may do better than all together."""
    return F.binary_cross_entropy_with_logits(logits, oracle.clamp(0, 1))


def flops(config: VerifierConfig, num_passages: int) -> int:
    """FLOPs for one question, a multiply and an add counted as two."""
    shared = (config.width + config.visual_width) * config.hidden
    return 2 * (shared + num_passages * (3 * config.width + 1) * config.hidden)
