"""Differentiable stand-ins for hard choices, and the schedules that sharpen them.

Enters: scores over n items in the last dimension and a temperature. Leaves: gates of the same
shape that approach the hard choice as the temperature goes to 0. Every function that samples
takes its noise as an argument, so that a choice without noise is deterministic and a choice
with noise is reproducible; nothing here draws from the global generator.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Count = int | Tensor  # one for all rows, or one per row: [...] for scores [..., n]


def gumbel_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Gumbel(0, 1) samples of the shape, dtype and device of `like`."""
    # Exponential samples avoid log(0), which uniform ones reach in half precision.
    return -torch.empty_like(like).exponential_(generator=generator).log()


def logistic_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The difference of two Gumbels: what perturbs a yes/no choice."""
    return gumbel_noise(like, generator) - gumbel_noise(like, generator)


def gumbel_sigmoid(logits: Tensor, temperature: float, noise: Tensor | None = None) -> Tensor:
    """Independent yes/no choices: tends to `logits + noise > 0`."""
    return torch.sigmoid(_perturbed(logits, noise) / temperature).to(logits.dtype)


def gumbel_softmax(logits: Tensor, temperature: float, noise: Tensor | None = None) -> Tensor:
    """One choice among n (the paper's eq. D.1): tends to the one-hot of the largest."""
    return torch.softmax(_perturbed(logits, noise) / temperature, dim=-1).to(logits.dtype)


def gumbel_softmax_top_k(
    logits: Tensor, k: Count, temperature: float, noise: Tensor | None = None
) -> Tensor:
    """k choices without replacement, each a Gumbel-softmax; the gates sum to k.

    The paper says that eq. D.1 tends to a hard top-k; one softmax tends to a top-1. Drawing k
    times, each draw lowering what was drawn before (Xie and Ermon, 2019), tends to the top-k,
    and for k = 1 is eq. D.1 itself. A real-valued `k` multiplies the last draw by its fraction.
    """
    left = _perturbed(logits, noise)
    gates = torch.zeros_like(left)
    tiny = torch.finfo(left.dtype).tiny
    count = torch.as_tensor(k, dtype=left.dtype, device=logits.device)
    for draw in range(math.ceil(count.detach().max().item())):
        drawn = torch.softmax(left / temperature, dim=-1)
        gates = gates + (count - draw).clamp(0, 1)[..., None] * drawn
        left = left + (1 - drawn).clamp_min(tiny).log()
    return _exact_at_the_ends(gates, count).to(logits.dtype)


def relaxed_top_k(
    logits: Tensor, k: Count, temperature: float, noise: Tensor | None = None
) -> Tensor:
    """Gumbel-sigmoid gates around the boundary between the k-th and the next item.

    Tends to the top k of the perturbed logits. A real-valued `k` moves the boundary linearly
    between items, so that gradients reach whatever chose k.
    """
    perturbed = _perturbed(logits, noise)
    count = torch.as_tensor(k, dtype=perturbed.dtype, device=logits.device)
    count = count.expand(logits.shape[:-1])
    boundary = _boundary(perturbed.detach(), count)
    gates = torch.sigmoid((perturbed - boundary[..., None]) / temperature)
    return _exact_at_the_ends(gates, count).to(logits.dtype)


def hard_top_k(scores: Tensor, k: Count) -> Tensor:
    """True at the k largest of the last dimension; among equals the first wins."""
    order = torch.argsort(scores, dim=-1, descending=True, stable=True)
    ranks = torch.argsort(order, dim=-1)
    return ranks < torch.as_tensor(k, device=scores.device)[..., None]


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of `hard` with the gradient of `soft` (Bengio et al., 2013)."""
    return hard + (soft - soft.detach())


def straight_through_top_k(
    logits: Tensor, k: Count, temperature: float, noise: Tensor | None = None
) -> Tensor:
    """Hard gates forward, relaxed gates backward."""
    soft = relaxed_top_k(logits, k, temperature, noise)
    hard = hard_top_k(_perturbed(logits, noise), torch.as_tensor(k).detach())
    return straight_through(hard.to(soft.dtype), soft)


def soft_round(x: Tensor, temperature: float) -> Tensor:
    """A staircase with smooth steps: tends to rounding half up."""
    below = x.detach().floor()
    return below + torch.sigmoid((x - below - 0.5) / temperature)


def cosine_schedule(start: float, end: float, step: int, steps: int) -> float:
    """The paper's eq. D.2 for tau_G: `start` at step 0, `end` at the last step and after."""
    progress = min(step / max(steps, 1), 1.0)
    return end + (start - end) / 2 * (1 + math.cos(math.pi * progress))


def linear_schedule(start: float, end: float, step: int, steps: int) -> float:
    """The paper's schedule for tau_e."""
    progress = min(step / max(steps, 1), 1.0)
    return (1 - progress) * start + progress * end


def widened(x: Tensor) -> Tensor:
    """At least float32: bfloat16 cannot tell a count of 301 from 302."""
    return x.float() if x.dtype.itemsize < 4 else x


def _perturbed(logits: Tensor, noise: Tensor | None) -> Tensor:
    return widened(logits) if noise is None else widened(logits) + noise


def _exact_at_the_ends(gates: Tensor, count: Tensor) -> Tensor:
    """All or nothing is exact at any temperature, without losing the gradient."""
    everything, nothing = (count >= gates.shape[-1])[..., None], (count <= 0)[..., None]
    exact = torch.where(everything, 1.0, torch.where(nothing, 0.0, gates.detach()))
    return straight_through(exact.to(gates.dtype), gates)


def _boundary(scores: Tensor, count: Tensor) -> Tensor:
    """The score that `count` items exceed, linear in `count`; outside [0.5, n - 0.5] it goes on
    with the mean gap."""
    n = scores.shape[-1]
    if n == 1:
        return scores[..., 0] + (0.5 - count)
    ranked = scores.sort(dim=-1, descending=True).values
    place = count - 0.5  # of the boundary, in units of the ranked items
    below = place.detach().floor().clamp(0, n - 2).long()[..., None]
    upper, lower = ranked.gather(-1, below)[..., 0], ranked.gather(-1, below + 1)[..., 0]
    inside = upper + (place - below[..., 0]) * (lower - upper)
    gap = (ranked[..., 0] - ranked[..., -1]) / (n - 1)
    above_all = ranked[..., 0] - place * gap
    below_all = ranked[..., -1] - (place - (n - 1)) * gap
    return torch.where(place < 0, above_all, torch.where(place > n - 1, below_all, inside))
