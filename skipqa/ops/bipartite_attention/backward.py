# mypy: disallow-untyped-defs=False
"""The backward kernels: the same walk over passages as `forward.py`.

While a program holds a passage, its tokens' gradients of keys and values add up in registers and
are written once; the gradient of a query is a sum over the passages of its token and travels as
the forward result does: through `state`, and a merge where its edges lie in several parts.
Weights are recomputed from the saved log-sum-exp (base 2). No atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from skipqa.ops.bipartite_attention.forward import groups_with_edges
from skipqa.ops.bipartite_attention.schedule import EDGELESS, FIRST, LAST, SEVERAL, SOLE, TOKEN

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_backward_kernel(
    q,
    k,
    v,
    bias,
    lse,
    delta,
    d_out,
    d_q,
    d_k,
    d_v,
    d_bias,
    state,
    rows,
    first_tile,
    count,
    part_start,
    apart,
    apart_count,
    lengths,
    q_item,
    q_token,
    q_head,
    k_head,
    v_head,
    scale,
    num_tokens,
    num_passages,
    most_tiles,
    K_TOKEN: tl.constexpr,
    V_TOKEN: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr,
    MEETS_AGAIN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: (heads, parts, items). All but q, k and v are contiguous.

    MEETS_AGAIN as in `forward.py`.
    """
    head = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    item = tl.program_id(2).to(tl.int64)
    rows += item * (most_tiles + 1) * BLOCK_M
    first_tile += item * num_passages
    count += item * num_passages
    lengths += item * num_passages
    q += item * q_item + head * q_head
    k += head * k_head
    v += head * v_head
    whole = item * num_tokens * (H * D) + head * D
    d_out += whole
    d_q += whole
    lse += item * num_tokens * H + head
    delta += item * num_tokens * H + head
    state += (item * PARTS + part) * num_tokens * (H * D) + head * D
    SUM: tl.constexpr = lse.dtype.element_ty
    scale_log2 = tl.cast(scale, SUM) * LOG2E
    m_range = tl.arange(0, BLOCK_M)
    n_range = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    in_width = d < D

    if part == 0:
        edgeless = tl.load(apart_count + item * 2 + EDGELESS)
        for first in range(0, edgeless, BLOCK_M):
            valid = first + m_range < edgeless
            entry = tl.load(
                apart + (item * 2 + EDGELESS) * num_tokens + first + m_range, mask=valid, other=0
            )
            tl.store(
                d_q + ((entry & TOKEN) * (H * D))[:, None] + d[None, :],
                tl.zeros([BLOCK_M, BLOCK_D], dtype=d_q.dtype.element_ty),
                mask=valid[:, None] & in_width[None, :],
            )

    # Where this part's passages begin in the packed keys, edges or not.
    group_size = tl.cdiv(num_passages, PARTS)
    base = tl.load(part_start + item * PARTS + part).to(tl.int64)
    for j in range(part * group_size, tl.minimum((part + 1) * group_size, num_passages)):
        degree = tl.load(count + j)
        length = tl.load(lengths + j).to(tl.int32)
        listed = rows + tl.load(first_tile + j) * BLOCK_M + m_range
        for n0 in range(0, length, BLOCK_N):
            in_passage = n0 + n_range < length
            mask_ND = in_passage[:, None] & in_width[None, :]
            # Keys and values of a passage without an edge are not read.
            used_ND = mask_ND & (degree > 0)
            k_ND = tl.load(
                k + (base + n0) * K_TOKEN + (n_range * K_TOKEN)[:, None] + d[None, :],
                mask=used_ND,
                other=0.0,
            )
            v_ND = tl.load(
                v + (base + n0) * V_TOKEN + (n_range * V_TOKEN)[:, None] + d[None, :],
                mask=used_ND,
                other=0.0,
            )
            ends_passage = n0 + BLOCK_N >= length
            dk_ND = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
            dv_ND = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
            for first in range(0, degree, BLOCK_M):
                entry = tl.load(listed + first)
                valid = entry >= 0
                token = entry & TOKEN
                mask_MD = valid[:, None] & in_width[None, :]
                at_MD = (token * (H * D))[:, None] + d[None, :]
                q_MD = tl.load(q + (token * q_token)[:, None] + d[None, :], mask=mask_MD, other=0.0)
                do_MD = tl.load(d_out + at_MD, mask=mask_MD, other=0.0)
                lse_M = tl.load(lse + token * H, mask=valid, other=float("inf"))
                delta_M = tl.load(delta + token * H, mask=valid, other=0.0)
                edge = (item * num_tokens + token) * num_passages + j
                if HAS_BIAS:
                    gate_M = tl.load(bias + edge, mask=valid, other=0.0).to(SUM)
                    lse_M -= gate_M * LOG2E
                s_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION).to(SUM)
                p_MN = tl.exp2(s_MN * scale_log2 - lse_M[:, None]).to(tl.float32)
                p_MN = tl.where(in_passage[None, :], p_MN, 0.0)
                dv_ND = tl.dot(
                    tl.trans(p_MN.to(do_MD.dtype)), do_MD, dv_ND, input_precision=PRECISION
                )
                dp_MN = tl.dot(do_MD, tl.trans(v_ND), input_precision=PRECISION)
                ds_MN = p_MN * (dp_MN - delta_M[:, None])
                if HAS_BIAS:
                    at = d_bias + head * tl.num_programs(2) * num_tokens * num_passages + edge
                    before_M = tl.load(at, mask=valid & (n0 > 0), other=0.0)
                    tl.store(at, before_M + tl.sum(ds_MN, axis=1), mask=valid)
                ds_MN = (ds_MN * scale).to(q_MD.dtype)
                dk_ND = tl.dot(tl.trans(ds_MN), q_MD, dk_ND, input_precision=PRECISION)
                dq_MD = tl.dot(ds_MN, k_ND, input_precision=PRECISION)

                met = valid & (((entry & FIRST) == 0) | (n0 > 0))
                done = valid & ((entry & LAST) != 0) & ends_passage
                if PARTS > 1:
                    done = done & ((entry & SOLE) != 0)
                if MEETS_AGAIN | (n0 > 0):
                    dq_MD += tl.load(
                        state + at_MD, mask=met[:, None] & in_width[None, :], other=0.0
                    ).to(tl.float32)
                tl.store(
                    d_q + at_MD,
                    dq_MD.to(d_q.dtype.element_ty),
                    mask=done[:, None] & in_width[None, :],
                )
                tl.store(
                    state + at_MD,
                    dq_MD.to(state.dtype.element_ty),
                    mask=(valid & (done == 0))[:, None] & in_width[None, :],
                )
            tl.debug_barrier()  # the next turn reads rows that other threads have written
            at_ND = ((base + n0) * H + head) * D + (n_range * (H * D))[:, None] + d[None, :]
            tl.store(d_k + at_ND, dk_ND.to(d_k.dtype.element_ty), mask=mask_ND)
            tl.store(d_v + at_ND, dv_ND.to(d_v.dtype.element_ty), mask=mask_ND)
        base += length


@triton.jit
def merge_backward_kernel(
    edges,
    lengths,
    d_q,
    state,
    apart,
    apart_count,
    num_tokens,
    num_passages,
    H: tl.constexpr,
    D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Grid: (tokens, items). A token with edges in several parts: the sum of its parts."""
    item = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0)
    if place < tl.load(apart_count + item * 2 + SEVERAL):
        token = tl.load(apart + (item * 2 + SEVERAL) * num_tokens + place) & TOKEN
        group_K = groups_with_edges(
            edges, lengths, item, token, num_tokens, num_passages, BLOCK_K, PARTS
        )
        h = tl.arange(0, BLOCK_H)
        d = tl.arange(0, BLOCK_D)
        at_HD = h[:, None] * D + d[None, :]
        mask_HD = (h < H)[:, None] & (d < D)[None, :]
        dq_HD = tl.zeros([BLOCK_H, BLOCK_D], dtype=tl.float32)
        part = tl.min(group_K, axis=0)
        while part < PARTS:
            slot = (item * PARTS + part) * num_tokens + token
            found_HD = tl.load(state + slot * (H * D) + at_HD, mask=mask_HD, other=0.0)
            dq_HD += found_HD.to(tl.float32)
            part = tl.min(tl.where(group_K > part, group_K, PARTS), axis=0)
        at = (item * num_tokens + token) * (H * D) + at_HD
        tl.store(d_q + at, dq_HD.to(d_q.dtype.element_ty), mask=mask_HD)


@triton.jit
def delta_kernel(
    out,
    d_out,
    delta,
    num_rows,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """delta = <out, d_out> of every row [B * V * H]: softmax's gradient subtracts it."""
    r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    d = tl.arange(0, BLOCK_D)
    mask_RD = (r < num_rows)[:, None] & (d < D)[None, :]
    at_RD = r[:, None] * D + d[None, :]
    o_RD = tl.load(out + at_RD, mask=mask_RD, other=0.0).to(tl.float32)
    do_RD = tl.load(d_out + at_RD, mask=mask_RD, other=0.0).to(tl.float32)
    tl.store(delta + r, tl.sum(o_RD * do_RD, axis=1), mask=r < num_rows)
