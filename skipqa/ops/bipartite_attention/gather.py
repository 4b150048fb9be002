"""The path for a CPU: work is done only for edges that survived.

Passage by passage, the queries of the tokens with an edge to it are gathered, attend to that
passage alone, and the partial results of a token are merged by their log-sum-exp (the
flash-decoding identity), so that a passage's keys and values are read once for all tokens that
need it and never for the others. Differentiable through torch's autograd.

Shape letters as in `reference.py`; E edges into one passage, L its tokens.
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
    q_THD = q_BVHD.flatten(0, 1)
    visits = _visits(edges_BVK, lengths_BK)
    if not visits:
        return q_BVHD * 0.0
    inputs = [x for x in (q_BVHD, k_NHD, v_NHD, bias_BVK) if x is not None]
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    attend = _differentiable_partials if learns or q_BVHD.is_cuda else _fused_partials
    partials, lse = attend(q_THD, k_NHD, v_NHD, visits, bias_BVK, scale)
    out_THD = torch.zeros_like(q_THD)
    for visit, partial_EHD, share_EH in zip(
        visits, partials, _edge_share(lse, visits, q_THD.shape[0]), strict=True
    ):
        out_THD.index_add_(0, visit.rows, partial_EHD * share_EH[:, :, None])
    return out_THD.view_as(q_BVHD)


def _differentiable_partials(
    q_THD: Tensor,
    k_NHD: Tensor,
    v_NHD: Tensor,
    visits: list[_Visit],
    bias_BVK: Tensor | None,
    scale: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """For each visited passage its rows' attention [E, H, D] and log-sum-exp [E, H]."""
    logits = _edge_logits(q_THD, k_NHD, visits, bias_BVK, scale)
    partials = [
        (x_HEL.softmax(-1) @ v_NHD[visit.start : visit.stop].transpose(0, 1)).transpose(0, 1)
        for visit, x_HEL in zip(visits, logits, strict=True)
    ]
    return partials, [x_HEL.logsumexp(-1).T for x_HEL in logits]


def _fused_partials(
    q_THD: Tensor,
    k_NHD: Tensor,
    v_NHD: Tensor,
    visits: list[_Visit],
    bias_BVK: Tensor | None,
    scale: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """The same by torch's fused CPU kernel, which also returns the log-sum-exp. An edge's bias is
    one number for the whole passage: it moves the log-sum-exp and nothing else."""
    # The kernel wants the last dimension dense, which an expanded tensor's is not.
    q_THD, k_NHD, v_NHD = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (q_THD, k_NHD, v_NHD)
    )
    partials, lse = [], []
    for visit in visits:
        inside = slice(visit.start, visit.stop)
        out_1HED, lse_1HE = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *(x.transpose(0, 1)[None] for x in (q_THD[visit.rows], k_NHD[inside], v_NHD[inside])),
            scale=scale,
        )
        lse_EH = lse_1HE[0].T
        if bias_BVK is not None:
            lse_EH = lse_EH + bias_BVK.flatten(0, 1)[visit.rows, visit.passage, None]
        partials.append(out_1HED[0].transpose(0, 1))
        lse.append(lse_EH.to(q_THD.dtype))
    return partials, lse


def edge_mass(
    q_BVHD: Tensor,
    k_NHD: Tensor,
    edges_BVK: Tensor,
    lengths_BK: Tensor,
    bias_BVK: Tensor | None,
    scale: float,
) -> Tensor:
    """[B, V, K]: the share of a token's attention that a passage received, mean over heads."""
    visits = _visits(edges_BVK, lengths_BK)
    mass_BVK = torch.zeros(edges_BVK.shape, dtype=q_BVHD.dtype, device=q_BVHD.device)
    if not visits:
        return mass_BVK
    logits = _edge_logits(q_BVHD.flatten(0, 1), k_NHD, visits, bias_BVK, scale)
    lse = [logits_HEL.logsumexp(-1).T for logits_HEL in logits]
    mass_TK = mass_BVK.flatten(0, 1)
    for visit, share_EH in zip(visits, _edge_share(lse, visits, len(mass_TK)), strict=True):
        mass_TK[visit.rows, visit.passage] = share_EH.mean(-1)
    return mass_BVK


class _Visit(NamedTuple):
    """One passage and the rows of the flattened queries that have an edge to it."""

    passage: int  # within its item
    rows: Tensor  # [E] into B * V
    start: int  # of its tokens in the packed keys
    stop: int


def _visits(edges_BVK: Tensor, lengths_BK: Tensor) -> list[_Visit]:
    """Only passages that have tokens and at least one edge."""
    num_tokens = edges_BVK.shape[1]
    found = []
    start = 0
    for b, lengths in enumerate(lengths_BK.tolist()):
        for j, length in enumerate(lengths):
            rows = edges_BVK[b, :, j].nonzero().squeeze(-1) + b * num_tokens
            if length and len(rows):
                found.append(_Visit(j, rows, start, start + length))
            start += length
    return found


def _edge_logits(
    q_THD: Tensor, k_NHD: Tensor, visits: list[_Visit], bias_BVK: Tensor | None, scale: float
) -> list[Tensor]:
    logits = []
    for visit in visits:
        q_HED = q_THD[visit.rows].transpose(0, 1) * scale
        logits_HEL = q_HED @ k_NHD[visit.start : visit.stop].permute(1, 2, 0)
        if bias_BVK is not None:
            bias_E = bias_BVK.flatten(0, 1)[visit.rows, visit.passage]
            logits_HEL = logits_HEL + bias_E[None, :, None]
        logits.append(logits_HEL)
    return logits


def _edge_share(lse: list[Tensor], visits: list[_Visit], num_rows: int) -> list[Tensor]:
    """The weight of each partial result: softmax of log-sum-exp over the edges of a row."""
    num_heads = lse[0].shape[1]
    peak_TH = torch.full((num_rows, num_heads), -math.inf, dtype=lse[0].dtype, device=lse[0].device)
    for visit, lse_EH in zip(visits, lse, strict=True):
        peak_TH[visit.rows] = torch.maximum(peak_TH[visit.rows], lse_EH.detach())
    total_TH = torch.zeros_like(peak_TH)
    weights = []
    for visit, lse_EH in zip(visits, lse, strict=True):
        weights.append(torch.exp(lse_EH - peak_TH[visit.rows]))
        total_TH = total_TH.index_add(0, visit.rows, weights[-1])
    return [w_EH / total_TH[visit.rows] for visit, w_EH in zip(visits, weights, strict=True)]
