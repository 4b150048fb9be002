"""What bipartite sparse cross-attention means, in plain torch: the oracle of every test.

Enters: queries of visual tokens, keys and values of packed passages, an edge matrix.
Leaves: one attention row a visual token; zeros where a token has no edge.
It computes every pair and masks afterwards, so it is slow and obviously right; it shares
no code with the paths that skip work.

Shape letters: B items, V visual tokens, K passages an item, H heads, D head width,
N tokens of all passages of all items together (passage after passage, item after item).
"""

from __future__ import annotations

import math

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
    """softmax(q k^T * scale + bias) v over the tokens of the passages that a row has an edge to."""
    out = []
    start = 0
    for b, lengths in enumerate(lengths_BK.tolist()):
        stop = start + sum(lengths)
        k, v = k_NHD[start:stop], v_NHD[start:stop]
        start = stop
        passage_of_token = torch.repeat_interleave(
            torch.arange(len(lengths), device=k.device), torch.tensor(lengths, device=k.device)
        )
        logits_HVN = torch.einsum("vhd,nhd->hvn", q_BVHD[b], k) * scale
        if bias_BVK is not None:
            logits_HVN = logits_HVN + bias_BVK[b][:, passage_of_token]
        visible_VN = edges_BVK[b][:, passage_of_token]
        weights_HVN = torch.softmax(logits_HVN.masked_fill(~visible_VN, -math.inf), dim=-1)
        # A row that sees nothing is 0/0 under softmax; its attention is defined as zero.
        weights_HVN = torch.where(visible_VN.any(-1, keepdim=True), weights_HVN, 0.0)
        out.append(torch.einsum("hvn,nhd->vhd", weights_HVN, v))
    return torch.stack(out)


def num_edges_kept(
    num_tokens: int, num_passages: int, top: float | None, degree: float | None
) -> int:
    """How many edges of `num_tokens * num_passages` a fraction or a mean degree stands for."""
    pairs = num_tokens * num_passages
    # The small slack keeps 0.1 * 640 from rounding up to 65 edges.
    count = degree * num_tokens if degree is not None else (top or 0.0) * pairs
    return min(pairs, math.ceil(count - 1e-6))


def top_edges(
    scores_BVK: Tensor, present_BK: Tensor, top: float | None, degree: float | None
) -> Tensor:
    """The best edges, [B, V, K] bool. Ties go to the smaller (token, passage)."""
    present_BVK = present_BK[:, None, :].expand_as(scores_BVK)
    num_items, num_tokens, _ = scores_BVK.shape
    flat = scores_BVK.detach().masked_fill(~present_BVK, -math.inf).reshape(num_items, -1)
    order = flat.argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(flat.shape[1], device=flat.device).expand_as(order)
    )
    kept = torch.tensor(
        [num_edges_kept(num_tokens, n, top, degree) for n in present_BK.sum(-1).tolist()],
        device=flat.device,
    )
    return (rank < kept[:, None]).view_as(scores_BVK) & present_BVK
