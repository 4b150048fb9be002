"""BSCA's edges while training: every edge open a little, by how far its score is inside.

Enters: compatibility scores [..., V, K]. Leaves: gates of that shape in (0, 1) that tend to the
0/1 edges of `ops.bipartite_attention.select_edges` as the temperature goes to 0. The attention
takes their logarithm as `edge_bias`; a row's openness scales what the row receives, so that a
row without edges tends to passing through. `relaxed_fusion` is the fusion layer run this way, on
the same parameters: unlike the hard form it lets closed edges learn to open.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from skipqa.nn.fusion import BipartiteFusion
from skipqa.nn.relaxation import gumbel_sigmoid, relaxed_top_k
from skipqa.ops.bipartite_attention import bipartite_attention
from skipqa.ops.bipartite_attention.reference import num_edges_kept


def soft_edges(
    scores: Tensor,
    *,
    temperature: float,
    above: float | Tensor | None = None,
    at_least: float | Tensor | None = None,
    top: float | None = None,
    degree: float | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """One rule as in `select_edges`. Gradients reach the scores and a learned threshold; an edge
    whose score is the threshold itself is half open at any temperature."""
    assert sum(rule is not None for rule in (above, at_least, top, degree)) == 1
    threshold = at_least if above is None else above
    if threshold is not None:
        return gumbel_sigmoid(scores - threshold, temperature, noise)
    count = num_edges_kept(scores.shape[-2], scores.shape[-1], top, degree)
    pairs = scores.flatten(-2)
    perturbation = None if noise is None else noise.flatten(-2)
    return relaxed_top_k(pairs, count, temperature, perturbation).view_as(scores)


def relaxed_fusion(
    layer: BipartiteFusion,
    tokens_Vd: Tensor,
    passages_Np: Tensor,
    embeddings_Kp: Tensor,
    lengths: Sequence[int],
    *,
    temperature: float,
    threshold: float | None = None,
    noise: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Fused tokens [V, d] and gates [V, K] of one item; all pairs are computed.

    `threshold` replaces the layer's own rule: the tau_e that stage III anneals.
    """
    scores = layer.compatibility(tokens_Vd, embeddings_Kp)
    rule = {"above": threshold} if threshold is not None else layer.rule.arguments(layer.threshold)
    gates = soft_edges(scores, temperature=temperature, noise=noise, **rule)
    q = layer.split_heads(layer.query(tokens_Vd))
    k, v = (layer.split_heads(project(passages_Np)) for project in (layer.key, layer.value))
    everything = torch.ones_like(gates, dtype=torch.bool)
    read = bipartite_attention(q, k, v, everything, lengths, edge_bias=edge_bias(gates))
    return tokens_Vd + row_openness(gates)[:, None] * layer.out(read.flatten(1)), gates


def row_openness(gates: Tensor) -> Tensor:
    """[..., V]: 1 where a token has an edge, 0 where it has none, between while training."""
    return 1 - (1 - gates).prod(-1)


def edge_bias(gates: Tensor) -> Tensor:
    """The logarithm of the gates, finite: a closed gate leaves an edge with no weight."""
    return gates.clamp_min(torch.finfo(gates.dtype).tiny).log()


def degree_loss(gates: Tensor, most: float | Tensor = 6.0, weight: float = 0.05) -> Tensor:
    """The last term of eq. D.3: lambda_e (mean degree - Delta_max)_+^2, mean over the batch;
    Delta_max is one for all, or one per item."""
    mean_degree = gates.sum(-1).mean(-1)
    return weight * (mean_degree - most).relu().square().mean()
