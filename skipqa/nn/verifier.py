"""SKV, second half: which retrieved passages deserve to be read.

Enters: the pooled question [..., D], the pooled kept tokens [..., D_v] and the passages'
embeddings [..., K, D]; where it was trained with them also S signals per passage, what the stage
knows of it besides its embedding. Leaves: one logit per passage, nu_j = sigmoid(logit) (eq. B.6).
Where it was trained to, a passage is also judged by its best rival: of several that might answer
one mostly does.
`judge` turns any nu_j into the kept set (inference), `gates` into what tends to it (training).
It neither retrieves nor fuses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.nn.relaxation import relaxed_top_k

SUREST = 8.0  # a logit beyond is as good as certain
RIVAL_SCALE = 4.0


@dataclass(frozen=True, slots=True)
class VerifierConfig:
    width: int  # of question and passages
    visual_width: int
    hidden: int = 512
    signals: int = 0  # S; 0 is the paper's own form
    dropout: float = 0.0  # of the embeddings' blocks, while training
    rivals: int = 0  # hidden units that compare a passage with its best rival; 0: none do


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
        self.of_signals = (
            nn.Linear(config.signals, config.hidden, bias=False) if config.signals else None
        )
        self.out = nn.Linear(config.hidden, 1)
        self.among = _Rivals(config.rivals) if config.rivals else None

    def forward(
        self,
        question: Tensor,
        visual: Tensor,
        passages: Tensor,
        signals: Tensor | None = None,
        there: Tensor | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        """`there` [..., K] is False where there is no passage, but padding; `own` tells somebody's
        own documents, which have no rivals but each other, from general knowledge."""
        shared = self.of_query(self._thin(torch.cat((question, visual), dim=-1)))
        q = question[..., None, :]
        compared = torch.cat((passages, passages * q, (passages - q).abs()), dim=-1)
        hidden = shared[..., None, :] + self.of_passage(self._thin(compared))
        if self.of_signals is not None:
            assert signals is not None
            # New signals come last: one that was trained with fewer reads those it knows
            hidden = hidden + self.of_signals(signals[..., : self.config.signals])
        logits = self.out(F.gelu(hidden))[..., 0]
        if self.among is None or not logits.numel():
            return logits
        return self.among(logits, there, own)

    def _thin(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.dropout, self.training)


class _Rivals(nn.Module):
    """Adds to each logit what its lead over the best other one says; nothing at first."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(3, hidden), nn.Linear(hidden, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, logits: Tensor, there: Tensor | None, own: Tensor | None) -> Tensor:
        bounded = logits.clamp(-SUREST, SUREST)
        if there is not None:
            bounded = bounded.masked_fill(~there, -SUREST)
        no_rival = torch.eye(logits.shape[-1], dtype=torch.bool, device=logits.device)
        if own is not None:
            no_rival = no_rival | (own[..., None, :] != own[..., :, None])
        others = bounded[..., None, :].expand(*bounded.shape, -1).masked_fill(no_rival, -SUREST)
        best = others.amax(-1)
        compared = torch.stack((bounded, best, bounded - best), dim=-1) / RIVAL_SCALE
        return logits + self.out(F.gelu(self.hidden(compared)))[..., 0]


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
    own = 3 * config.width + config.signals + 1
    return 2 * (shared + num_passages * (own * config.hidden + 4 * config.rivals))
