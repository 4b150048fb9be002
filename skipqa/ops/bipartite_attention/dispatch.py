"""One door to bipartite attention: checks the shapes, then hands over to a backend.

`triton` computes on a CUDA device, `cuda` too but with kernels written for Hopper, where they take
the inputs; `gather` skips the same work on a CPU, `reference` masks a dense product and
is there to compare with. `auto` picks by the device and the shapes. The backend is an argument,
never a global.

Shape letters: B items, V visual tokens, K passages an item, H heads, D head width,
N tokens of all passages of all items together. Passages are packed without padding: passage j
of item b follows passage j - 1 of item b, and item b follows item b - 1.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor

from skipqa.errors import MissingExtra, UserError
from skipqa.ops.bipartite_attention import gather, reference

Backend = Literal["auto", "cuda", "triton", "gather", "reference"]
Compatibility = Literal["sigmoid", "cosine"]

KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def compatibility(h_v: Tensor, h_k: Tensor, *, kind: Compatibility = "sigmoid") -> Tensor:
    """How well visual token i and passage j go together: `[..., V, K]`, differentiable.

    `h_v [..., V, d]` and `h_k [..., K, d]` are projected tokens and pooled passages.
    "sigmoid" is the main text's A_ij = sigmoid(<h_v, h_k> / sqrt d), "cosine" the appendix's.
    """
    if kind == "cosine":
        h_v = torch.nn.functional.normalize(h_v, dim=-1)
        h_k = torch.nn.functional.normalize(h_k, dim=-1)
        return h_v @ h_k.transpose(-1, -2)
    return torch.sigmoid(h_v @ h_k.transpose(-1, -2) / math.sqrt(h_v.shape[-1]))


def select_edges(
    scores: Tensor,
    *,
    above: float | Tensor | None = None,
    at_least: float | Tensor | None = None,
    top: float | None = None,
    degree: float | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The edges that survive: a bool tensor of the shape of `scores`, `[V, K]` or `[B, V, K]`.

    Exactly one rule: `above` (the main text's tau) and `at_least` (the appendix's tau_e) keep
    scores by a threshold, `top` keeps that fraction of an item's pairs, `degree` keeps as many
    pairs as give that mean number of edges a token. `lengths` (`[K]` or `[B, K]`) marks passages
    of no tokens as absent: they get no edge and do not count as pairs. No gradient flows through
    the choice.
    """
    if sum(rule is not None for rule in (above, at_least, top, degree)) != 1:
        raise UserError("select_edges takes exactly one of above, at_least, top and degree")
    if top is not None and not 0.0 <= top <= 1.0:
        raise UserError(f"top is a fraction of all pairs, not {top}")
    if degree is not None and degree < 0.0:
        raise UserError(f"degree is a mean number of edges a token, not {degree}")
    batched = scores if scores.dim() == 3 else scores[None]
    num_items, num_tokens, num_passages = batched.shape
    lengths_BK = None
    if lengths is not None:
        lengths_BK = _lengths(lengths, num_items, num_passages, scores.device)
    if above is at_least is None and _resolve(backend, scores) in ("triton", "cuda"):
        from skipqa.ops.bipartite_attention import selection

        if num_tokens * num_passages <= selection.MAX_PAIRS:
            return selection.select_edges(batched, lengths_BK, top, degree).view(scores.shape)
    if lengths_BK is None:
        lengths_BK = torch.ones(num_items, num_passages, device=scores.device)
    present_BK = lengths_BK > 0
    if above is not None:
        edges = (batched > above) & present_BK[:, None, :]
    elif at_least is not None:
        edges = (batched >= at_least) & present_BK[:, None, :]
    else:
        edges = reference.top_edges(batched, present_BK, top, degree)
    return edges.view(scores.shape)


def bipartite_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edges: Tensor,
    lengths: Tensor | Sequence[int],
    *,
    edge_bias: Tensor | None = None,
    scale: float | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """Each visual token attends to all tokens of the passages it has an edge to.

    One item: `q [V, H, D]`, `edges [V, K]` bool, `lengths [K]`. A batch: `q [B, V, H, D]`,
    `edges [B, V, K]`, `lengths [B, K]` (0 for a passage that is not there). In both,
    `k` and `v` are `[N, H, D]`, packed passages, `N = lengths.sum()`.
    `edge_bias` (shape of `edges`) is added to every logit of an edge: log of a soft gate while
    training, through which the gate gets its gradient. `scale` defaults to 1 / sqrt(D).

    Returns the shape of `q`. A token without an edge gets zeros, so that a residual connection
    passes it through unchanged.
    """
    batched = q.dim() == 4
    q_BVHD = q if batched else q[None]
    edges_BVK = edges if batched else edges[None]
    bias_BVK = edge_bias if batched or edge_bias is None else edge_bias[None]
    _check(q_BVHD, k, v, edges_BVK, bias_BVK)
    lengths_BK = _lengths(lengths, q_BVHD.shape[0], edges_BVK.shape[2], q.device)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    attend = gather.bipartite_attention
    match _resolve(backend, q):
        case "reference":
            attend = reference.bipartite_attention
        case "triton" | "cuda" as chosen:
            from skipqa.ops.bipartite_attention import cuda
            from skipqa.ops.bipartite_attention import triton as kernels

            attend = kernels.bipartite_attention
            num_passages = edges_BVK.shape[2]
            if chosen == "cuda" and not cuda.fits(q_BVHD, k, v, num_passages):
                raise UserError(
                    f"backend='cuda' does not take queries {q.dtype}{tuple(q.shape)} on this device"
                )
            auto = backend == "auto"
            if chosen == "cuda" or (auto and cuda.pays(q_BVHD, k, v, num_passages)):
                launch = cuda.Launch.choose(len(q_BVHD), q.shape[-2], num_passages)
                attend = partial(attend, forward_launch=launch)
            fits_or_pays = cuda.pays_backward if auto else cuda.fits_backward
            if (auto or chosen == "cuda") and fits_or_pays(q_BVHD, k, v, bias_BVK, num_passages):
                attend = partial(attend, backward_launch=cuda.Backward())
    out = attend(q_BVHD, k, v, edges_BVK, lengths_BK, bias_BVK, scale)
    return out if batched else out[0]


def passage_mass(
    q: Tensor,
    k: Tensor,
    edges: Tensor,
    lengths: Tensor | Sequence[int],
    *,
    edge_bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The fraction of each token's attention that went to each passage, mean over heads.

    Arguments as in `bipartite_attention`. Returns the shape of `edges`; rows sum to 1, or to 0
    for a token without an edge. Sum over tokens for the mass a passage received.
    """
    batched = q.dim() == 4
    q_BVHD = q if batched else q[None]
    edges_BVK = edges if batched else edges[None]
    bias_BVK = edge_bias if batched or edge_bias is None else edge_bias[None]
    _check(q_BVHD, k, k, edges_BVK, bias_BVK)
    lengths_BK = _lengths(lengths, q_BVHD.shape[0], edges_BVK.shape[2], q.device)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    return gather.edge_mass(q_BVHD, k, edges_BVK, lengths_BK, bias_BVK, scale).view(edges.shape)


def word_mass(
    q: Tensor,
    k: Tensor,
    edges: Tensor,
    lengths: Tensor | Sequence[int],
    weights: Tensor,
    *,
    edge_bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The attention that each token of the passages received, mean over heads; `weights` (shape of
    `edges` without passages) say how much a visual token counts.

    Other arguments as in `bipartite_attention`. Returns `[N]`, as `k` is packed. With weights that
    sum to 1 over tokens with an edge it is a distribution per item.
    """
    batched = q.dim() == 4
    q_BVHD = q if batched else q[None]
    edges_BVK = edges if batched else edges[None]
    bias_BVK = edge_bias if batched or edge_bias is None else edge_bias[None]
    _check(q_BVHD, k, k, edges_BVK, bias_BVK)
    lengths_BK = _lengths(lengths, q_BVHD.shape[0], edges_BVK.shape[2], q.device)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    return gather.word_mass(q_BVHD, k, edges_BVK, lengths_BK, bias_BVK, scale, weights)


def _resolve(backend: Backend, x: Tensor) -> Backend:
    if backend == "auto":
        on_kernels = x.is_cuda and x.dtype in KERNEL_DTYPES and triton_is_installed()
        return "triton" if on_kernels else "gather"
    if backend in ("triton", "cuda"):
        if not triton_is_installed():
            raise MissingExtra(f"backend='{backend}'", "gpu")
        if not x.is_cuda and (backend == "cuda" or os.environ.get("TRITON_INTERPRET") != "1"):
            raise UserError(f"backend='{backend}' needs tensors on a CUDA device")
    return backend


@cache
def triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def _lengths(
    lengths: Tensor | Sequence[int], num_items: int, num_passages: int, device: torch.device
) -> Tensor:
    lengths_BK = torch.as_tensor(lengths, device=device)
    if lengths_BK.numel() != num_items * num_passages:
        raise UserError(
            f"{lengths_BK.numel()} passage lengths for {num_items} x {num_passages} passages"
        )
    return lengths_BK.reshape(num_items, num_passages)


def _check(q: Tensor, k: Tensor, v: Tensor, edges: Tensor, bias: Tensor | None) -> None:
    if q.dim() != 4 or k.dim() != 3 or k.shape != v.shape or k.shape[1:] != q.shape[2:]:
        raise UserError(
            f"queries {tuple(q.shape)} do not fit keys {tuple(k.shape)} and values {tuple(v.shape)}"
        )
    if edges.dtype != torch.bool or edges.dim() != 3 or edges.shape[:2] != q.shape[:2]:
        raise UserError(
            f"edges {edges.dtype}{tuple(edges.shape)} do not fit queries {tuple(q.shape)}"
        )
    if bias is not None and bias.shape != edges.shape:
        raise UserError(f"edge_bias {tuple(bias.shape)} does not fit edges {tuple(edges.shape)}")
