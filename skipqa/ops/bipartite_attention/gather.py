"""The path for a CPU: work is done only for edges that survived.

Edges are sorted by passage, so that a passage's keys and values are read once, for all tokens
that need it and never for the others; each such group of edges attends to its passage alone, and
the partial results of a token are merged by their log-sum-exp (the flash-decoding identity).
Differentiable through torch's autograd.

Shape letters as in `reference.py`; E edges, L tokens of one passage, T = B * V.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


def bipartite_attention(
    q_BVHD: Tensor,
    k_NHD: Tensor,
    v_NHD: Tensor,
    edges_BVK: Tensor,
    lengths_BK: Tensor,
    bias_BVK: Tensor | None,
    scale: float,
) -> Tensor:
    edges = _sort(edges_BVK, lengths_BK)
    if not edges.groups:
        return q_BVHD * 0.0
    inputs = [x for x in (q_BVHD, k_NHD, v_NHD, bias_BVK) if x is not None]
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    attend = _differentiable if learns or q_BVHD.is_cuda else _fused
    q_THD = q_BVHD.flatten(0, 1)
    parts = [
        attend(q_THD[edges.row[g.edges]], k_NHD[g.words], v_NHD[g.words], scale)
        for g in edges.groups
    ]
    lse_EH = torch.cat([lse for _, lse in parts])
    prob_EH1 = _probs(lse_EH, edges, bias_BVK, len(q_THD))[:, :, None]
    out_THD = torch.zeros_like(q_THD, dtype=prob_EH1.dtype)
    for g, (part_EHD, _) in zip(edges.groups, parts, strict=True):
        out_THD.index_add_(0, edges.row[g.edges], part_EHD * prob_EH1[g.edges])
    return out_THD.view_as(q_BVHD).to(q_BVHD.dtype)


def edge_mass(
    q_BVHD: Tensor,
    k_NHD: Tensor,
    edges_BVK: Tensor,
    lengths_BK: Tensor,
    bias_BVK: Tensor | None,
    scale: float,
) -> Tensor:
    """[B, V, K]: the fraction of a token's attention that a passage received, mean over heads."""
    edges = _sort(edges_BVK, lengths_BK)
    mass_BVK = torch.zeros(edges_BVK.shape, dtype=q_BVHD.dtype, device=q_BVHD.device)
    if edges.groups:
        q_THD = q_BVHD.flatten(0, 1)
        lse_EH = torch.cat(
            [
                _logits(q_THD[edges.row[g.edges]], k_NHD[g.words], scale).logsumexp(-1).T
                for g in edges.groups
            ]
        )
        prob_EH = _probs(lse_EH, edges, bias_BVK, len(q_THD))
        mass_BVK.flatten(0, 1)[edges.row, edges.passage] = prob_EH.mean(-1).to(mass_BVK.dtype)
    return mass_BVK


def word_mass(
    q_BVHD: Tensor,
    k_NHD: Tensor,
    edges_BVK: Tensor,
    lengths_BK: Tensor,
    bias_BVK: Tensor | None,
    scale: float,
    weights_BV: Tensor,
) -> Tensor:
    """[N]: the attention that each word received, mean over heads; rows count by their weight."""
    edges = _sort(edges_BVK, lengths_BK)
    mass_N = torch.zeros(len(k_NHD), dtype=weights_BV.dtype, device=q_BVHD.device)
    if edges.groups:
        q_THD, weights_T = q_BVHD.flatten(0, 1), weights_BV.flatten()
        logits = [_logits(q_THD[edges.row[g.edges]], k_NHD[g.words], scale) for g in edges.groups]
        lse_EH = torch.cat([logits_HEL.logsumexp(-1).T for logits_HEL in logits])
        prob_EH = _probs(lse_EH, edges, bias_BVK, len(q_THD))
        for g, logits_HEL in zip(edges.groups, logits, strict=True):
            weight_HE = (prob_EH[g.edges] * weights_T[edges.row[g.edges], None]).T
            within_HEL = logits_HEL.to(weight_HE.dtype).softmax(-1)
            of_word_HL = torch.einsum("he,hel->hl", weight_HE, within_HEL)
            mass_N[g.words] = of_word_HL.mean(0).to(mass_N.dtype)
    return mass_N


class _Group(NamedTuple):
    """The edges into one passage and its tokens among the packed ones."""

    edges: slice
    words: slice


class _Edges(NamedTuple):
    """Into passages that have tokens, sorted by item and passage."""

    row: Tensor  # [E] into B * V
    passage: Tensor  # [E] within its item
    groups: list[_Group]


def _sort(edges_BVK: Tensor, lengths_BK: Tensor) -> _Edges:
    reaching_BKV = edges_BVK.transpose(1, 2) & (lengths_BK > 0)[:, :, None]
    item, passage, token = reaching_BKV.nonzero(as_tuple=True)
    groups, first_edge, first_word = [], 0, 0
    counts = reaching_BKV.sum(-1).flatten().tolist()
    for count, length in zip(counts, lengths_BK.flatten().tolist(), strict=True):
        end_edge, end_word = first_edge + count, first_word + length
        if count:
            groups.append(_Group(slice(first_edge, end_edge), slice(first_word, end_word)))
        first_edge, first_word = end_edge, end_word
    return _Edges(item * edges_BVK.shape[1] + token, passage, groups)


def _differentiable(
    q_EHD: Tensor, k_LHD: Tensor, v_LHD: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention [E, H, D] to one passage and its log-sum-exp [E, H]."""
    logits_HEL = _logits(q_EHD, k_LHD, scale)
    out_HED = logits_HEL.softmax(-1) @ v_LHD.transpose(0, 1)
    return out_HED.transpose(0, 1), logits_HEL.logsumexp(-1).T


def _fused(q_EHD: Tensor, k_LHD: Tensor, v_LHD: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The same by torch's fused CPU kernel, which also returns the log-sum-exp."""
    # The kernel wants the last dimension dense, which an expanded tensor's is not.
    out_1HED, lse_1HE = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *(
            (x if x.stride(-1) == 1 else x.contiguous()).transpose(0, 1)[None]
            for x in (q_EHD, k_LHD, v_LHD)
        ),
        scale=scale,
    )
    return out_1HED[0].transpose(0, 1), lse_1HE[0].T


def _logits(q_EHD: Tensor, k_LHD: Tensor, scale: float) -> Tensor:
    """[H, E, L]"""
    return (q_EHD.transpose(0, 1) * scale) @ k_LHD.permute(1, 2, 0)


def _probs(lse_EH: Tensor, edges: _Edges, bias_BVK: Tensor | None, num_rows: int) -> Tensor:
    """The weight of each partial result: softmax of log-sum-exp over the edges of a row.

    An edge's bias is one number for the whole passage: it moves the log-sum-exp and nothing else.
    At least float32: what bfloat16 rounds off a logarithm is a percent of the weight.
    """
    lse_EH = lse_EH if lse_EH.dtype == torch.float64 else lse_EH.float()
    if bias_BVK is not None:
        lse_EH = lse_EH + bias_BVK.flatten(0, 1)[edges.row, edges.passage, None]
    row_EH = edges.row[:, None].expand_as(lse_EH)
    lowest_TH = lse_EH.new_full((num_rows, lse_EH.shape[1]), -math.inf)
    peak_TH = lowest_TH.scatter_reduce(0, row_EH, lse_EH.detach(), "amax")
    weight_EH = (lse_EH - peak_TH[edges.row]).exp()
    total_TH = torch.zeros_like(peak_TH).index_add(0, edges.row, weight_EH)
    return weight_EH / total_TH[edges.row]
