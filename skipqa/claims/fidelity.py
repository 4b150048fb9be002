"""Saliency fidelity: does saliency measure what a token is worth? (the paper's assumption 2)

Enters: any model as a function from visual tokens to the log-probability of the correct answer,
and the saliency of the same tokens. Leaves: eta and Spearman's correlation between saliency and
the counterfactual proxy: the log-probability lost when a token becomes the mean token. It knows no
pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from skipqa.errors import UserError

NOTHING = 1e-6  # nats: a smaller change is rounding
LogProb = Callable[[Tensor], Tensor]  # tokens [B, V, D] -> log p(correct answer) [B]


@torch.no_grad()
def counterfactual_worth(
    log_prob: LogProb, tokens_VD: Tensor, batch: int = 64, positions: Tensor | None = None
) -> Tensor:
    """log p with all tokens minus log p with token i replaced by the mean token, for every i or
    those of `positions`."""
    mean_D = tokens_VD.mean(0)
    whole = log_prob(tokens_VD[None])
    everywhere = torch.arange(len(tokens_VD)) if positions is None else positions
    worth = []
    for some in everywhere.split(batch):
        ablated_BVD = tokens_VD.expand(len(some), -1, -1).clone()
        ablated_BVD[torch.arange(len(some)), some] = mean_D
        worth.append(whole - log_prob(ablated_BVD))
    return torch.cat(worth)


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Over a data set. `eta` compares the raw numbers, as the paper does. A score in [0, 1] and a
    log-probability need not have the same scale, so `eta_calibrated` compares after the affine map
    of all scores that fits the proxy best; the ranking does not change."""

    eta: float
    eta_calibrated: float
    spearman: float  # mean over questions
    num_questions: int
    worth_something: float  # fraction of the tokens without which anything changes


def saliency_fidelity(pairs: Iterable[tuple[Tensor, Tensor]]) -> Fidelity:
    """Each pair: saliency [V] and counterfactual worth [V] of one question."""
    questions = [(saliency.double(), worth.double()) for saliency, worth in pairs]
    if not questions:
        raise UserError("saliency fidelity needs at least one question")
    saliency = torch.cat([s for s, _ in questions])
    worth = torch.cat([w for _, w in questions])
    design = torch.stack((saliency, torch.ones_like(saliency)), dim=1)
    fitted = design @ torch.linalg.lstsq(design, worth[:, None], driver="gelsd").solution[:, 0]
    return Fidelity(
        eta=float((saliency - worth).abs().max()),
        eta_calibrated=float((fitted - worth).abs().max()),
        spearman=sum(spearman(s, w) for s, w in questions) / len(questions),
        num_questions=len(questions),
        worth_something=float((worth.abs() > NOTHING).double().mean()),
    )


def score_gap(scores_V: Tensor, kept: int) -> float:
    """Between the last score that is kept and the next; 0 where all are kept."""
    ranked = scores_V.sort(descending=True).values
    return float(ranked[kept - 1] - ranked[kept]) if kept < len(ranked) else 0.0


def spearman(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation of ranks, ties get their mean rank; 0 if either side is constant."""
    ranks = torch.stack([_ranks(x) for x in (a, b)])
    centred = ranks - ranks.mean(1, keepdim=True)
    scale = centred.norm(dim=1).prod()
    return float((centred[0] @ centred[1]) / scale) if scale > 0 else 0.0


def _ranks(x: Tensor) -> Tensor:
    _, group, sizes = x.unique(return_inverse=True, return_counts=True)
    last = sizes.cumsum(0).double()
    return (last - (sizes.double() - 1) / 2)[group]
