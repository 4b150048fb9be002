# mypy: disallow-untyped-defs=False
"""The order of work on the GPU.

Enters: an edge matrix. Leaves: a `Schedule` that lists, for every passage, the tokens with an edge
to it. Nothing is read back to the host, so it can be part of a CUDA graph; knows nothing of
queries, keys and values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# An entry of `Schedule.rows` is a token's number under three flags; padding is negative.
FIRST = tl.constexpr(1 << 28)  # the token has no edge to an earlier passage of the part
LAST = tl.constexpr(1 << 29)  # … to a later passage of the part
SOLE = tl.constexpr(1 << 30)  # … to a passage of another part
TOKEN = tl.constexpr((1 << 28) - 1)


class Schedule(NamedTuple):
    """Tiles of up to `block_m` tokens with an edge to one passage, in the order of the passages.

    The passages of an item are cut into P parts, worked on independently. T is the largest
    possible number of tiles; only those that exist are written. EDGELESS tokens and those with
    edges in SEVERAL parts are listed apart.
    """

    rows: Tensor  # [B, T + 1, block_m] int32 entries
    tiles: Tensor  # [B, T + 1, 4] int32: passage, its first packed token, its length, unused
    first_tile: Tensor  # [B, K] int32 of each passage
    degree: Tensor  # [B, K] int32: edges of each passage
    part_tile: Tensor  # [B, P] int32: the first tile of each part
    part_steps: Tensor  # [B, P] int32: its tiles, each times the chunks of its passage
    part_start: Tensor  # [B, P] int32: where its passages begin in the packed keys
    apart: Tensor  # [B, 2, V] int32: EDGELESS and SEVERAL
    apart_count: Tensor  # [B, 2] int32


EDGELESS = tl.constexpr(0)
SEVERAL = tl.constexpr(1)


def build(
    edges_BVK: Tensor, lengths_BK: Tensor, *, parts: int, block_m: int, block_n: int
) -> Schedule:
    num_items, num_tokens, num_passages = edges_BVK.shape
    most_tiles = num_passages * triton.cdiv(num_tokens, block_m)

    def ints(*shape: int) -> Tensor:
        return torch.empty(num_items, *shape, dtype=torch.int32, device=edges_BVK.device)

    # One tile more than can exist: a program looks one tile ahead.
    schedule = Schedule(
        rows=ints(most_tiles + 1, block_m),
        tiles=ints(most_tiles + 1, 4),
        first_tile=ints(num_passages),
        degree=ints(num_passages),
        part_tile=ints(parts),
        part_steps=ints(parts),
        part_start=ints(parts),
        apart=ints(2, num_tokens),
        apart_count=ints(2),
    )
    _schedule_kernel[(num_items, num_passages + 2)](
        edges_BVK.contiguous(),
        lengths_BK,
        *schedule,
        num_tokens,
        num_passages,
        most_tiles,
        PARTS=parts,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_T=triton.next_power_of_2(triton.cdiv(num_tokens, block_m)),
        BLOCK_V=min(128, max(16, triton.next_power_of_2(num_tokens))),
        BLOCK_K=triton.next_power_of_2(num_passages),
        BLOCK_L=512,
        num_warps=4,
    )
    return schedule


@triton.jit
def _schedule_kernel(
    edges,
    lengths,
    rows,
    tiles,
    first_tile,
    count,
    part_tile,
    part_steps,
    part_start,
    apart,
    apart_count,
    num_tokens,
    num_passages,
    most_tiles,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """One program a list of an item: compact the tokens that belong to it, in order."""
    item = tl.program_id(0).to(tl.int64)
    this = tl.program_id(1)
    k = tl.arange(0, BLOCK_K)
    in_row = k < num_passages
    length_K = tl.load(lengths + item * num_passages + k, mask=in_row, other=0).to(tl.int32)
    group_size = tl.cdiv(num_passages, PARTS)
    group_K = k // group_size
    group = this // group_size
    edges += item * num_tokens * num_passages
    v_range = tl.arange(0, BLOCK_V)

    count_K = tl.zeros([BLOCK_K], dtype=tl.int32)
    for first in range(0, num_tokens, BLOCK_V):
        v = first + v_range
        count_K += tl.sum(
            tl.load(
                edges + v[:, None] * num_passages + k[None, :],
                mask=(v < num_tokens)[:, None] & (length_K > 0)[None, :],
                other=0,
            ).to(tl.int32),
            axis=0,
        )
    tiles_K = tl.cdiv(count_K, BLOCK_M)
    tiles_before = tl.sum(tl.where(k < this, tiles_K, 0), axis=0)

    if this < num_passages:
        this_count = tl.sum(tl.where(k == this, count_K, 0), axis=0)
        flat_this = item * num_passages + this
        tl.store(first_tile + flat_this, tiles_before)
        tl.store(count + flat_this, this_count)
        before_L = tl.zeros([BLOCK_L], dtype=tl.int32)
        for earlier in range(0, flat_this, BLOCK_L):
            flat = earlier + tl.arange(0, BLOCK_L)
            before_L += tl.load(lengths + flat, mask=flat < flat_this, other=0).to(tl.int32)
        base = tl.sum(before_L, axis=0)
        if this == group * group_size:
            tl.store(part_start + item * PARTS + group, base)
        t = tl.arange(0, BLOCK_T)
        this_tiles = tl.cdiv(this_count, BLOCK_M)
        at = tiles + (item * (most_tiles + 1) + tiles_before + t) * 4
        tl.store(at, t * 0 + this, mask=t < this_tiles)
        tl.store(at + 1, t * 0 + base, mask=t < this_tiles)
        this_length = tl.sum(tl.where(k == this, length_K, 0), axis=0)
        tl.store(at + 2, t * 0 + this_length, mask=t < this_tiles)
        target = rows + (item * (most_tiles + 1) + tiles_before) * BLOCK_M
        padding = this_count + tl.arange(0, BLOCK_M)
        tl.store(target + padding, padding * 0 - 1, mask=padding < this_tiles * BLOCK_M)
    else:
        target = apart + (item * 2 + this - num_passages) * num_tokens
        if this == num_passages:
            steps_K = tiles_K * tl.cdiv(length_K, BLOCK_N)
            for part in range(PARTS):
                flat_part = item * PARTS + part
                tl.store(
                    part_tile + flat_part, tl.sum(tl.where(group_K < part, tiles_K, 0), axis=0)
                )
                tl.store(
                    part_steps + flat_part, tl.sum(tl.where(group_K == part, steps_K, 0), axis=0)
                )

    found = 0
    for first in range(0, num_tokens, BLOCK_V):
        v = first + v_range
        edge = tl.load(
            edges + v[:, None] * num_passages + k[None, :],
            mask=(v < num_tokens)[:, None] & (length_K > 0)[None, :],
            other=0,
        ).to(tl.int32)
        in_part = tl.where((group_K == group)[None, :], edge, 0)
        degree = tl.sum(edge, axis=1)
        before = tl.sum(tl.where((k < this)[None, :], in_part, 0), axis=1)
        here = tl.sum(tl.where((k == this)[None, :], in_part, 0), axis=1)
        after = tl.sum(tl.where((k > this)[None, :], in_part, 0), axis=1)
        inside = before + here + after
        if this == num_passages:
            here = ((degree == 0) & (v < num_tokens)).to(tl.int32)
        if this == num_passages + 1:  # more edges than the part of the first of them holds
            first_group = tl.min(tl.where(edge > 0, group_K[None, :], PARTS), axis=1)
            mine = tl.where(group_K[None, :] == first_group[:, None], edge, 0)
            here = (degree > tl.sum(mine, axis=1)).to(tl.int32)
        place = found + tl.cumsum(here, axis=0) - here
        entry = (
            v
            | tl.where(before == 0, FIRST, 0)
            | tl.where(after == 0, LAST, 0)
            | tl.where(inside == degree, SOLE, 0)
        )
        tl.store(target + place, entry, mask=here > 0)
        found += tl.sum(here, axis=0)
    if this >= num_passages:
        tl.store(apart_count + item * 2 + this - num_passages, found)
