# mypy: disallow-untyped-defs=False
"""The whole fusion layer on a GPU for inference: keys and values are never computed.

With few queries it is cheaper to move the key projection to the queries and the value projection
to the results (matrix products associate):

    q_h . (W_K,h x) = (W_K,h^T q_h) . x        sum_n p_n (W_V,h x_n) = W_V,h (sum_n p_n x_n)

so that all heads attend to the passage tokens themselves. The cost of projecting every passage
token disappears; what remains grows with surviving edges and with tokens that have one. Products
run over those tokens only: their number stays on the device, tiles beyond it end at once.

Shape letters as in `reference.py`; R rows, i.e. tokens with an edge, d the width of the tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from skipqa.ops.bipartite_attention import schedule
from skipqa.ops.bipartite_attention.forward import LOG2E
from skipqa.ops.bipartite_attention.schedule import EDGELESS, TOKEN

TOKENS_A_TILE = 8
HEADS_A_TILE = 8


class Weights(NamedTuple):
    """As `nn.Linear` stores them: [out, in]."""

    q: Tensor  # [H * D, d]
    k: Tensor  # [H * D, d_passage]
    v: Tensor  # [H * D, d_passage]
    o: Tensor  # [d, H * D]


def fusion_layer(
    tokens_BVd: Tensor,
    passages_Nd: Tensor,
    weights: Weights,
    edges_BVK: Tensor,
    lengths_BK: Tensor,
    num_heads: int,
    scale: float,
    longest: int,
) -> Tensor:
    """tokens + W_O attention(tokens, passages); tokens without an edge as they were.

    No passage has more than `longest` tokens.
    """
    num_items, num_tokens, width = tokens_BVd.shape
    num_passages, passage_width = edges_BVK.shape[2], passages_Nd.shape[1]
    head_width = weights.q.shape[0] // num_heads
    assert num_heads % HEADS_A_TILE == 0
    tokens_Td = tokens_BVd.reshape(-1, width)
    edges_BVK = edges_BVK.contiguous()
    most_rows = num_items * num_tokens

    def empty(*shape: int, dtype: torch.dtype = tokens_BVd.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=tokens_BVd.device)

    # A passage is one chunk of the scores: its weights are then normalised where they are made.
    block_n = max(16, triton.next_power_of_2(longest))
    plan = schedule.build(edges_BVK, lengths_BK, parts=1, block_m=TOKENS_A_TILE, block_n=block_n)
    rows = empty(most_rows, dtype=torch.int32)  # [R] into B * V
    row_of = empty(most_rows, dtype=torch.int32)  # [B * V] into R
    num_rows = empty(1, dtype=torch.int32)
    _rows_kernel[(num_items,)](
        edges_BVK,
        lengths_BK,
        plan.apart_count,
        rows,
        row_of,
        num_rows,
        num_tokens,
        num_passages,
        BLOCK_V=min(128, max(16, triton.next_power_of_2(num_tokens))),
        BLOCK_K=triton.next_power_of_2(num_passages),
        BLOCK_B=triton.next_power_of_2(num_items),
    )

    q_RHD = empty(most_rows, num_heads, head_width)
    _product(tokens_Td, weights.q.T, q_RHD.view(most_rows, -1), num_rows, gather=rows)
    query_RHd = empty(most_rows, num_heads, passage_width)
    for_heads = weights.k.view(num_heads, head_width, passage_width)
    _grouped(q_RHD.transpose(0, 1), for_heads, query_RHd.transpose(0, 1), num_rows)

    weight_BVKHL = empty(num_items, num_tokens, num_passages, num_heads, block_n)
    lse_BVKH = empty(num_items, num_tokens, num_passages, num_heads, dtype=torch.float32)
    _scores_kernel[(num_heads // HEADS_A_TILE, plan.tiles.shape[1] - 1, num_items)](
        query_RHd,
        passages_Nd,
        weight_BVKHL,
        lse_BVKH,
        plan.rows,
        plan.tiles,
        plan.part_steps,
        row_of,
        scale * LOG2E.value,
        num_tokens,
        num_passages,
        plan.tiles.shape[1] - 1,
        H=num_heads,
        d=passage_width,
        X_TOKEN=passages_Nd.stride(0),
        TOKENS=TOKENS_A_TILE,
        HEADS=HEADS_A_TILE,
        BLOCK_N=block_n,
        BLOCK_d=64,
        num_warps=4,
        num_stages=4,
    )
    context_RHd = empty(most_rows, num_heads, passage_width)
    block_h = max(16, triton.next_power_of_2(num_heads))
    block_d = 128
    _context_kernel[(triton.cdiv(passage_width, block_d), most_rows)](
        weight_BVKHL,
        lse_BVKH,
        passages_Nd,
        context_RHd,
        edges_BVK,
        lengths_BK,
        plan.first_tile,
        plan.tiles,
        rows,
        num_rows,
        num_tokens,
        num_passages,
        plan.tiles.shape[1] - 1,
        H=num_heads,
        d=passage_width,
        X_TOKEN=passages_Nd.stride(0),
        BLOCK_H=block_h,
        BLOCK_N=block_n,
        BLOCK_d=block_d,
        BLOCK_K=triton.next_power_of_2(num_passages),
        num_warps=4,
        num_stages=2,
    )
    out_RHD = q_RHD  # the queries are not needed any more
    to_heads = weights.v.view(num_heads, head_width, passage_width).transpose(1, 2)
    _grouped(context_RHd.transpose(0, 1), to_heads, out_RHD.transpose(0, 1), num_rows)
    fused_Td = tokens_Td.clone()
    _product(
        out_RHD.view(most_rows, -1), weights.o.T, fused_Td, num_rows, scatter=rows, add=tokens_Td
    )
    return fused_Td.view(tokens_BVd.shape)


def _product(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    num_rows: Tensor,
    *,
    gather: Tensor | None = None,
    scatter: Tensor | None = None,
    add: Tensor | None = None,
) -> None:
    _launch_product(a[None], b[None], out[None], num_rows, gather, scatter, add)


def _grouped(a: Tensor, b: Tensor, out: Tensor, num_rows: Tensor) -> None:
    _launch_product(a, b, out, num_rows, None, None, None)


def _launch_product(
    a_GRI: Tensor,
    b_GIO: Tensor,
    out_GRO: Tensor,
    num_rows: Tensor,
    gather: Tensor | None,
    scatter: Tensor | None,
    add: Tensor | None,
) -> None:
    """out[g, r] = a[g, r] @ b[g] for the first `num_rows` rows r, row `gather[r]` of a."""
    groups, inner, outer = b_GIO.shape
    most_rows = out_GRO.shape[1] if gather is None else gather.shape[0]
    block_r, block_i = 128, 64
    block_o = min(128 if groups > 1 else 64, triton.next_power_of_2(outer))
    _product_kernel[(triton.cdiv(outer, block_o), triton.cdiv(most_rows, block_r), groups)](
        a_GRI,
        b_GIO,
        out_GRO,
        num_rows,
        gather,
        scatter,
        add,
        *a_GRI.stride(),
        *b_GIO.stride(),
        *out_GRO.stride()[:2],
        inner,
        outer,
        GATHER=gather is not None,
        SCATTER=scatter is not None,
        BLOCK_R=block_r,
        BLOCK_O=block_o,
        BLOCK_I=block_i,
        PRECISION="ieee" if a_GRI.dtype == torch.float32 else "tf32",
        num_warps=8,
        num_stages=4,
    )


@triton.jit
def _rows_kernel(
    edges,
    lengths,
    apart_count,
    rows,
    row_of,
    num_rows,
    num_tokens,
    num_passages,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """One program an item: number its tokens with an edge after those of earlier items."""
    item = tl.program_id(0)
    b = tl.arange(0, BLOCK_B)
    edgeless_B = tl.load(
        apart_count + b * 2 + EDGELESS, mask=b < tl.num_programs(0), other=num_tokens
    )
    found = tl.sum(tl.where(b < item, num_tokens - edgeless_B, 0), axis=0)
    if item == 0:
        tl.store(num_rows, tl.sum(num_tokens - edgeless_B, axis=0))
    k = tl.arange(0, BLOCK_K)
    present = tl.load(lengths + item * num_passages + k, mask=k < num_passages, other=0) > 0
    for first in range(0, num_tokens, BLOCK_V):
        v = first + tl.arange(0, BLOCK_V)
        flat = item * num_tokens + v
        edge_VK = tl.load(
            edges + flat[:, None].to(tl.int64) * num_passages + k[None, :],
            mask=(v < num_tokens)[:, None] & present[None, :],
            other=0,
        ).to(tl.int32)
        has = (tl.sum(edge_VK, axis=1) > 0).to(tl.int32)
        place = found + tl.cumsum(has, axis=0) - has
        tl.store(rows + place, flat, mask=has > 0)
        tl.store(row_of + flat, place, mask=has > 0)
        found += tl.sum(has, axis=0)


@triton.jit
def _product_kernel(
    a,
    b,
    out,
    num_rows,
    gather,
    scatter,
    add,
    a_group,
    a_row,
    a_inner,
    b_group,
    b_inner,
    b_outer,
    out_group,
    out_row,
    inner,
    outer,
    GATHER: tl.constexpr,
    SCATTER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    PRECISION: tl.constexpr,
):
    rows = tl.load(num_rows)
    first = tl.program_id(1) * BLOCK_R
    if first < rows:
        group = tl.program_id(2).to(tl.int64)
        r = first + tl.arange(0, BLOCK_R)
        in_rows = r < rows
        source = r.to(tl.int64)
        if GATHER:
            source = tl.load(gather + r, mask=in_rows, other=0).to(tl.int64)
        o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
        in_outer = o < outer
        i = tl.arange(0, BLOCK_I)
        a_RI = a + group * a_group + source[:, None] * a_row + i[None, :] * a_inner
        b_IO = b + group * b_group + i[:, None] * b_inner + o[None, :] * b_outer
        acc_RO = tl.zeros([BLOCK_R, BLOCK_O], dtype=tl.float32)
        for done in range(0, inner, BLOCK_I):
            in_inner = done + i < inner
            acc_RO = tl.dot(
                tl.load(a_RI, mask=in_rows[:, None] & in_inner[None, :], other=0.0),
                tl.load(b_IO, mask=in_inner[:, None] & in_outer[None, :], other=0.0),
                acc_RO,
                input_precision=PRECISION,
            )
            a_RI += BLOCK_I * a_inner
            b_IO += BLOCK_I * b_inner
        mask_RO = in_rows[:, None] & in_outer[None, :]
        target = r.to(tl.int64)
        if SCATTER:
            target = tl.load(scatter + r, mask=in_rows, other=0).to(tl.int64)
            acc_RO += tl.load(
                add + target[:, None] * out_row + o[None, :], mask=mask_RO, other=0.0
            ).to(tl.float32)
        tl.store(
            out + group * out_group + target[:, None] * out_row + o[None, :],
            acc_RO.to(out.dtype.element_ty),
            mask=mask_RO,
        )


@triton.jit
def _scores_kernel(
    query,
    x,
    weight,
    lse,
    rows,
    tiles,
    part_steps,
    row_of,
    scale_log2,
    num_tokens,
    num_passages,
    most_tiles,
    H: tl.constexpr,
    d: tl.constexpr,
    X_TOKEN: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_d: tl.constexpr,
):
    """Grid: (groups of heads, tiles, items). Weights of an edge, normalised within its passage."""
    item = tl.program_id(2).to(tl.int64)
    tile = tl.program_id(1)
    if tile < tl.load(part_steps + item):
        at = tiles + (item * (most_tiles + 1) + tile) * 4
        passage = tl.load(at)
        base = tl.load(at + 1).to(tl.int64)
        length = tl.load(at + 2)
        m = tl.arange(0, TOKENS * HEADS)
        head = tl.program_id(0) * HEADS + m % HEADS
        entry = tl.load(rows + (item * (most_tiles + 1) + tile) * TOKENS + m // HEADS)
        valid = entry >= 0
        token = item * num_tokens + (entry & TOKEN)
        row = tl.load(row_of + token, mask=valid, other=0).to(tl.int64)
        n = tl.arange(0, BLOCK_N)
        in_passage = n < length
        c = tl.arange(0, BLOCK_d)
        s_MN = tl.zeros([TOKENS * HEADS, BLOCK_N], dtype=tl.float32)
        for done in range(0, d, BLOCK_d):
            in_width = done + c < d
            q_Mc = tl.load(
                query + ((row * H + head) * d + done)[:, None] + c[None, :],
                mask=valid[:, None] & in_width[None, :],
                other=0.0,
            )
            x_Nc = tl.load(
                x + base * X_TOKEN + done + (n * X_TOKEN)[:, None] + c[None, :],
                mask=in_passage[:, None] & in_width[None, :],
                other=0.0,
            )
            s_MN = tl.dot(q_Mc, tl.trans(x_Nc), s_MN, input_precision="ieee")
        s_MN = tl.where(in_passage[None, :], s_MN * scale_log2, float("-inf"))
        peak_M = tl.max(s_MN, axis=1)
        p_MN = tl.exp2(s_MN - peak_M[:, None])
        total_M = tl.sum(p_MN, axis=1)
        edge = token * num_passages + passage
        tl.store(lse + edge * H + head, peak_M + tl.log2(total_M), mask=valid)
        tl.store(
            weight + ((edge * H + head) * BLOCK_N)[:, None] + n[None, :],
            (p_MN / total_M[:, None]).to(weight.dtype.element_ty),
            mask=valid[:, None],
        )


@triton.jit
def _context_kernel(
    weight,
    lse,
    x,
    context,
    edges,
    lengths,
    first_tile,
    tiles,
    rows,
    num_rows,
    num_tokens,
    num_passages,
    most_tiles,
    H: tl.constexpr,
    d: tl.constexpr,
    X_TOKEN: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_d: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Grid: (blocks of the width, rows). The weighted sum of a token's passage tokens, a head."""
    row = tl.program_id(1)
    if row < tl.load(num_rows):
        token = tl.load(rows + row).to(tl.int64)
        item = token // num_tokens
        h = tl.arange(0, BLOCK_H)
        n = tl.arange(0, BLOCK_N)
        c = tl.program_id(0) * BLOCK_d + tl.arange(0, BLOCK_d)
        k = tl.arange(0, BLOCK_K)
        length_K = tl.load(lengths + item * num_passages + k, mask=k < num_passages, other=0)
        edge_K = tl.load(
            edges + token * num_passages + k, mask=(k < num_passages) & (length_K > 0), other=0
        ).to(tl.int32)
        lse_HK = tl.load(
            lse + (token * num_passages + k[None, :]) * H + h[:, None],
            mask=(h < H)[:, None] & (edge_K > 0)[None, :],
            other=float("-inf"),
        )
        peak_H = tl.max(lse_HK, axis=1)
        peak_H = tl.where(h < H, peak_H, 0.0)
        prob_HK = tl.exp2(lse_HK - peak_H[:, None])
        prob_HK = prob_HK / tl.maximum(tl.sum(prob_HK, axis=1), 1e-30)[:, None]
        acc_Hc = tl.zeros([BLOCK_H, BLOCK_d], dtype=tl.float32)
        passage = tl.min(tl.where(edge_K > 0, k, BLOCK_K), axis=0)
        for _ in range(tl.sum(edge_K, axis=0)):
            tile = tl.load(first_tile + item * num_passages + passage)
            at = tiles + (item * (most_tiles + 1) + tile) * 4
            base = tl.load(at + 1).to(tl.int64)
            length = tl.load(at + 2)
            edge = token * num_passages + passage
            prob_H = tl.sum(tl.where(k[None, :] == passage, prob_HK, 0.0), axis=1)
            w_HN = tl.load(
                weight + (edge * H + h[:, None]) * BLOCK_N + n[None, :],
                mask=(h < H)[:, None],
                other=0.0,
            )
            x_Nc = tl.load(
                x + base * X_TOKEN + (n * X_TOKEN)[:, None] + c[None, :],
                mask=(n < length)[:, None] & (c < d)[None, :],
                other=0.0,
            )
            part_Hc = tl.dot(w_HN, x_Nc, input_precision="ieee")
            acc_Hc += part_Hc * prob_H[:, None]
            passage = tl.min(tl.where((edge_K > 0) & (k > passage), k, BLOCK_K), axis=0)
        tl.store(
            context + (row.to(tl.int64) * H + h[:, None]) * d + c[None, :],
            acc_Hc.to(context.dtype.element_ty),
            mask=(h < H)[:, None] & (c < d)[None, :],
        )
