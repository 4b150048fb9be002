# mypy: disallow-untyped-defs=False
"""The forward kernels: attention over surviving edges, in the order of the passages.

A program owns one head of one part of an item's passages and walks over the tiles of that part
(`schedule.py`), so that keys and values of a tile arrive while the one before is worked on. A
token that meets its second passage finds its running result in `state`, merges, and leaves the
result in `out` at its last one. Where its edges lie in several parts, each part leaves its result
in `state`, and `merge_kernel` combines them. No atomics: the same input gives the same bits.

A row's running result is its normalised output and its log-sum-exp (base 2).
"""

from __future__ import annotations

import triton
import triton.language as tl

from skipqa.ops.bipartite_attention.schedule import EDGELESS, FIRST, LAST, SEVERAL, SOLE, TOKEN

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def synchronise(lane, INTERPRETED: tl.constexpr):
    """Wait for all threads of the program: rows that one has written, another reads next.

    `tl.debug_barrier` would do, but a loop that holds it is not software-pipelined.
    """
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "bar.sync 0; mov.b32 $0, $1;",
            "=r,r,~{memory}",
            [lane],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def _log2_add(a, b):
    peak = tl.maximum(a, b)
    return peak + tl.log2(tl.exp2(a - peak) + tl.exp2(b - peak))


@triton.jit
def attend_kernel(
    q,
    k,
    v,
    bias,
    out,
    lse,
    state,
    state_lse,
    rows,
    tiles,
    part_tile,
    part_steps,
    apart,
    apart_count,
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
    INTERPRETED: tl.constexpr,
):
    """Grid: (heads, parts, items). `out`, `lse` and `state` are contiguous.

    MEETS_AGAIN: a part holds more than one passage, so that a token may come back.
    Strides over passage tokens are constants of the program: the addresses of a tile then differ
    by constants and take no registers.
    """
    head = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    item = tl.program_id(2).to(tl.int64)
    rows += item * (most_tiles + 1) * BLOCK_M
    tiles += item * (most_tiles + 1) * 4
    q += item * q_item + head * q_head
    k += head * k_head
    v += head * v_head
    out += item * num_tokens * (H * D) + head * D
    lse += item * num_tokens * H + head
    state += (item * PARTS + part) * num_tokens * (H * D) + head * D
    SUM: tl.constexpr = lse.dtype.element_ty
    scale_log2 = tl.cast(scale, SUM) * LOG2E
    state_lse += (item * PARTS + part) * num_tokens * H + head
    m_range = tl.arange(0, BLOCK_M)
    n_range = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    in_width = d < D

    tile = tl.load(part_tile + item * PARTS + part)
    steps = tl.load(part_steps + item * PARTS + part)

    if part == 0:  # tokens without an edge: their attention is zero
        edgeless = tl.load(apart_count + item * 2 + EDGELESS)
        for first in range(0, edgeless, BLOCK_M):
            valid = first + m_range < edgeless
            entry = tl.load(
                apart + (item * 2 + EDGELESS) * num_tokens + first + m_range, mask=valid, other=0
            )
            token = entry & TOKEN
            tl.store(
                out + (token * (H * D))[:, None] + d[None, :],
                tl.zeros([BLOCK_M, BLOCK_D], dtype=out.dtype.element_ty),
                mask=valid[:, None] & in_width[None, :],
            )
            tl.store(lse + token * H, tl.full([BLOCK_M], float("-inf"), SUM), mask=valid)

    passage = tl.load(tiles + tile * 4)
    base = tl.load(tiles + tile * 4 + 1)
    length = tl.load(tiles + tile * 4 + 2)
    entry = tl.load(rows + tile * BLOCK_M + m_range)
    ahead = tl.minimum(tile + 1, most_tiles)
    next_passage = tl.load(tiles + ahead * 4)
    next_base = tl.load(tiles + ahead * 4 + 1)
    next_length = tl.load(tiles + ahead * 4 + 2)
    next_entry = tl.load(rows + ahead * BLOCK_M + m_range)
    n0 = 0
    peak_M = tl.full([BLOCK_M], float("-inf"), SUM)
    total_M = tl.zeros([BLOCK_M], dtype=SUM)
    acc_MD = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    for _ in range(steps):
        valid = entry >= 0
        token = entry & TOKEN
        q_MD = tl.load(
            q + (token * q_token)[:, None] + d[None, :],
            mask=valid[:, None] & in_width[None, :],
            other=0.0,
        )
        in_passage = n0 + n_range < length
        mask_ND = in_passage[:, None] & in_width[None, :]
        first_row = (base + n0).to(tl.int64)
        # Read once: they must not push running results out of the cache.
        k_ND = tl.load(
            k + first_row * K_TOKEN + (n_range * K_TOKEN)[:, None] + d[None, :],
            mask=mask_ND,
            other=0.0,
            eviction_policy="evict_first",
        )
        v_ND = tl.load(
            v + first_row * V_TOKEN + (n_range * V_TOKEN)[:, None] + d[None, :],
            mask=mask_ND,
            other=0.0,
            eviction_policy="evict_first",
        )
        s_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION)
        s_MN = tl.where(in_passage[None, :], s_MN, float("-inf")).to(SUM)
        new_peak_M = tl.maximum(peak_M, tl.max(s_MN, axis=1) * scale_log2)
        p_MN = tl.exp2(s_MN * scale_log2 - new_peak_M[:, None])
        shrink_M = tl.exp2(peak_M - new_peak_M)
        total_M = total_M * shrink_M + tl.sum(p_MN, axis=1)
        acc_MD = tl.dot(
            p_MN.to(v_ND.dtype),
            v_ND,
            acc_MD * shrink_M.to(tl.float32)[:, None],
            input_precision=PRECISION,
        )
        peak_M = new_peak_M

        ends_passage = n0 + BLOCK_N >= length
        if ends_passage:
            lse_M = peak_M + tl.log2(total_M)
            if HAS_BIAS:
                gate = bias + (item * num_tokens + token) * num_passages + passage
                lse_M += LOG2E * tl.load(gate, mask=valid, other=0.0).to(SUM)
            at_MD = (token * (H * D))[:, None] + d[None, :]
            done = valid & ((entry & LAST) != 0)
            if PARTS > 1:
                done = done & ((entry & SOLE) != 0)
            if MEETS_AGAIN:
                met = valid & ((entry & FIRST) == 0)
                earlier_M = tl.load(state_lse + token * H, mask=met, other=float("-inf"))
                earlier_MD = tl.load(
                    state + at_MD, mask=met[:, None] & in_width[None, :], other=0.0
                )
                both_M = _log2_add(earlier_M, lse_M)
                now_M = (tl.exp2(lse_M - both_M) / total_M).to(tl.float32)
                then_M = tl.exp2(earlier_M - both_M).to(tl.float32)
                out_MD = acc_MD * now_M[:, None]
                out_MD += earlier_MD.to(tl.float32) * then_M[:, None]
                lse_M = both_M
            else:
                out_MD = acc_MD * (1.0 / total_M).to(tl.float32)[:, None]
            out_MD = out_MD.to(out.dtype.element_ty)
            tl.store(lse + token * H, lse_M, mask=done)
            tl.store(out + at_MD, out_MD, mask=done[:, None] & in_width[None, :])
            keep = valid & (done == 0)
            tl.store(state_lse + token * H, lse_M, mask=keep)
            tl.store(state + at_MD, out_MD, mask=keep[:, None] & in_width[None, :])
            if MEETS_AGAIN:
                synchronise(m_range, INTERPRETED)
            peak_M = tl.full([BLOCK_M], float("-inf"), SUM)
            total_M = tl.zeros([BLOCK_M], dtype=SUM)
            acc_MD = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)

        # The next chunk of this passage, or the next tile, which is already here.
        n0 = tl.where(ends_passage, 0, n0 + BLOCK_N)
        tile = tl.where(ends_passage, tile + 1, tile)
        passage = tl.where(ends_passage, next_passage, passage)
        base = tl.where(ends_passage, next_base, base)
        length = tl.where(ends_passage, next_length, length)
        entry = tl.where(ends_passage, next_entry, entry)
        ahead = tl.minimum(tile + 1, most_tiles)
        next_passage = tl.load(tiles + ahead * 4)
        next_base = tl.load(tiles + ahead * 4 + 1)
        next_length = tl.load(tiles + ahead * 4 + 2)
        next_entry = tl.load(rows + ahead * BLOCK_M + m_range)


@triton.jit
def attend_resident_kernel(
    q,
    k,
    v,
    bias,
    edges,
    out,
    lse,
    tiles,
    part_steps,
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
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: (heads, 1, items), all tokens of an item in one tile of BLOCK_M rows.

    Nothing is gathered: results stay in registers over all passages that any token reads, and a
    passage adds nothing to rows without an edge to it. Costs arithmetic that is idle anyway, since
    the time is that of reading keys and values; those of a passage without an edge are not read.
    """
    head = tl.program_id(0).to(tl.int64)
    item = tl.program_id(2).to(tl.int64)
    tiles += item * (most_tiles + 1) * 4
    edges += item * num_tokens * num_passages
    k += head * k_head
    v += head * v_head
    SUM: tl.constexpr = lse.dtype.element_ty
    scale_log2 = tl.cast(scale, SUM) * LOG2E
    m = tl.arange(0, BLOCK_M)
    n_range = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    in_width = d < D
    in_item = m < num_tokens
    mask_MD = in_item[:, None] & in_width[None, :]
    q_MD = tl.load(
        q + item * q_item + head * q_head + (m * q_token)[:, None] + d[None, :],
        mask=mask_MD,
        other=0.0,
    )
    tile = 0
    passage = tl.load(tiles)
    base = tl.load(tiles + 1)
    length = tl.load(tiles + 2)
    next_passage = tl.load(tiles + 4)
    next_base = tl.load(tiles + 5)
    next_length = tl.load(tiles + 6)
    n0 = 0
    peak_M = tl.full([BLOCK_M], float("-inf"), SUM)
    total_M = tl.zeros([BLOCK_M], dtype=SUM)
    acc_MD = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    for _ in range(tl.load(part_steps + item)):
        at_M = m * num_passages + passage
        edge_M = tl.load(edges + at_M, mask=in_item, other=0) > 0
        in_passage = n0 + n_range < length
        mask_ND = in_passage[:, None] & in_width[None, :]
        first_row = (base + n0).to(tl.int64)
        k_ND = tl.load(
            k + first_row * K_TOKEN + (n_range * K_TOKEN)[:, None] + d[None, :],
            mask=mask_ND,
            other=0.0,
        )
        v_ND = tl.load(
            v + first_row * V_TOKEN + (n_range * V_TOKEN)[:, None] + d[None, :],
            mask=mask_ND,
            other=0.0,
        )
        s_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION).to(SUM) * scale_log2
        if HAS_BIAS:
            gate = bias + item * num_tokens * num_passages + at_M
            gate_M = tl.load(gate, mask=in_item, other=0.0).to(SUM) * LOG2E
            s_MN += gate_M[:, None]
        s_MN = tl.where(edge_M[:, None] & in_passage[None, :], s_MN, float("-inf"))
        new_peak_M = tl.maximum(peak_M, tl.max(s_MN, axis=1))
        # A row that has seen nothing yet has no peak to subtract.
        shift_M = tl.where(new_peak_M == float("-inf"), 0.0, new_peak_M)
        p_MN = tl.exp2(s_MN - shift_M[:, None])
        shrink_M = tl.exp2(peak_M - shift_M)
        total_M = total_M * shrink_M + tl.sum(p_MN, axis=1)
        acc_MD = tl.dot(
            p_MN.to(v_ND.dtype),
            v_ND,
            acc_MD * shrink_M.to(tl.float32)[:, None],
            input_precision=PRECISION,
        )
        peak_M = new_peak_M

        ends_passage = n0 + BLOCK_N >= length
        n0 = tl.where(ends_passage, 0, n0 + BLOCK_N)
        tile = tl.where(ends_passage, tile + 1, tile)
        passage = tl.where(ends_passage, next_passage, passage)
        base = tl.where(ends_passage, next_base, base)
        length = tl.where(ends_passage, next_length, length)
        ahead = tl.minimum(tile + 1, most_tiles)
        next_passage = tl.load(tiles + ahead * 4)
        next_base = tl.load(tiles + ahead * 4 + 1)
        next_length = tl.load(tiles + ahead * 4 + 2)
    seen_M = total_M > 0.0
    out_MD = acc_MD / tl.where(seen_M, total_M, 1.0).to(tl.float32)[:, None]
    row = item * num_tokens + m
    tl.store(
        lse + row * H + head,
        tl.where(seen_M, peak_M + tl.log2(total_M), float("-inf")),
        mask=in_item,
    )
    tl.store(
        out + ((row * H + head) * D)[:, None] + d[None, :],
        out_MD.to(out.dtype.element_ty),
        mask=mask_MD,
    )


@triton.jit
def merge_kernel(
    edges,
    lengths,
    out,
    lse,
    state,
    state_lse,
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
    """Grid: (tokens, items). A token with edges in several parts, all heads at once."""
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
        lse_H = tl.full([BLOCK_H], float("-inf"), lse.dtype.element_ty)
        out_HD = tl.zeros([BLOCK_H, BLOCK_D], dtype=tl.float32)
        part = tl.min(group_K, axis=0)
        while part < PARTS:
            slot = (item * PARTS + part) * num_tokens + token
            found_H = tl.load(state_lse + slot * H + h, mask=h < H, other=0.0)
            found_HD = tl.load(state + slot * (H * D) + at_HD, mask=mask_HD, other=0.0)
            both_H = _log2_add(lse_H, found_H)
            out_HD = (
                out_HD * tl.exp2(lse_H - both_H).to(tl.float32)[:, None]
                + found_HD.to(tl.float32) * tl.exp2(found_H - both_H).to(tl.float32)[:, None]
            )
            lse_H = both_H
            part = tl.min(tl.where(group_K > part, group_K, PARTS), axis=0)
        row = item * num_tokens + token
        tl.store(lse + row * H + h, lse_H, mask=h < H)
        tl.store(out + row * (H * D) + at_HD, out_HD.to(out.dtype.element_ty), mask=mask_HD)


@triton.jit
def groups_with_edges(
    edges,
    lengths,
    item,
    token,
    num_tokens,
    num_passages,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
):
    """[BLOCK_K]: the part of each passage that the token has an edge to, PARTS elsewhere."""
    k = tl.arange(0, BLOCK_K)
    in_row = k < num_passages
    present = tl.load(lengths + item * num_passages + k, mask=in_row, other=0) > 0
    edge = tl.load(edges + (item * num_tokens + token) * num_passages + k, mask=in_row, other=0)
    return tl.where((edge > 0) & present, k // tl.cdiv(num_passages, PARTS), PARTS)
