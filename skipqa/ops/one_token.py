# mypy: disallow-untyped-defs=False
"""What a decoder's layer does to one token, on the GPU: products with a vector, and attention.

Enters: a token's state [D] and weights [N, D] as `torch.nn.Linear` keeps them. Leaves: vectors.
A step of one token reads every weight once and computes next to nothing, so its time is that of
reading and of launches. Norms, gates and sums are therefore part of the product next to them, and
rotation and the cache part of the attention: six launches a layer. Sums are in float32.

Shape letters: D width, N rows of a matrix, H heads, G key/value heads, S cached tokens, E head
width (a power of two).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

TILE = 4096  # weights that a program reads at once, 16 bytes a thread and row
KEYS_A_PART = 128
MAX_PARTS = 16


def product(
    x_D: Tensor,
    weight_ND: Tensor,
    *,
    norm: nn.RMSNorm | None = None,
    plus: Tensor | None = None,
    gated: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`plus` + W norm(x), [N]; `gated`: silu(a) * b of its two halves, [N / 2]."""
    num_rows, width = weight_ND.shape
    out = x_D.new_empty(num_rows // 2 if gated else num_rows, dtype=dtype)
    block = min(1024, triton.next_power_of_2(width))
    rows = max(1, TILE // block // (2 if gated else 1))
    _product_kernel[(triton.cdiv(len(out), rows),)](
        x_D,
        weight_ND,
        None if norm is None else norm.weight,
        plus,
        out,
        len(out),
        0.0 if norm is None else norm.eps,
        WIDTH=width,
        NORM=norm is not None,
        PLUS=plus is not None,
        GATED=gated,
        ROWS=rows,
        BLOCK=block,
        num_warps=4,
    )
    return out


def attend(
    qkv: Tensor,
    rope_SE: tuple[Tensor, Tensor],
    keys_GSE: Tensor,
    values_GSE: Tensor,
    position_1: Tensor,
) -> Tensor:
    """What the token at `position_1` reads of itself and of those before it, [H E].

    `qkv` are its queries, keys and values before rotation, [(H + 2 G) E]; its key and value enter
    the cache. Only what is filled of the cache is read.
    """
    num_groups, length, width = keys_GSE.shape
    num_heads = len(qkv) // width - 2 * num_groups
    parts = min(MAX_PARTS, triton.next_power_of_2(triton.cdiv(length, KEYS_A_PART)))
    mixed_PHE = torch.empty(parts, num_heads, width, dtype=torch.float32, device=qkv.device)
    best_PH, total_PH = torch.empty(2, parts, num_heads, dtype=torch.float32, device=qkv.device)
    _attend_kernel[(num_heads, parts)](
        qkv,
        *rope_SE,
        position_1,
        keys_GSE,
        values_GSE,
        mixed_PHE,
        best_PH,
        total_PH,
        length,
        width**-0.5,
        HEADS=num_heads,
        GROUPS=num_groups,
        WIDTH=width,
        BLOCK=64,
        num_warps=4,
    )
    out = torch.empty_like(qkv[: num_heads * width])
    _merge_kernel[(num_heads,)](
        mixed_PHE, best_PH, total_PH, out, HEADS=num_heads, WIDTH=width, PARTS=parts, num_warps=1
    )
    return out


@triton.jit
def _product_kernel(
    x,
    weight,
    norm,
    plus,
    out,
    num_rows,
    eps,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    PLUS: tl.constexpr,
    GATED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a few rows. Their sums wait until the end to be added up across threads, and so
    does the norm's division: it is the same for all."""
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    more = tl.zeros((ROWS, BLOCK), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in tl.static_range(0, WIDTH, BLOCK):
        d = start + tl.arange(0, BLOCK)
        state = tl.load(x + d, mask=d < WIDTH, other=0.0).to(tl.float32)
        if NORM:
            squares += state * state
            state *= tl.load(norm + d, mask=d < WIDTH, other=0.0).to(tl.float32)
        there = (n < num_rows)[:, None] & (d < WIDTH)[None, :]
        here = weight + n[:, None] * WIDTH + d[None, :]
        tile = tl.load(here, mask=there, other=0.0, eviction_policy="evict_first")
        sums += tile.to(tl.float32) * state[None, :]
        if GATED:
            here += num_rows * WIDTH
            tile = tl.load(here, mask=there, other=0.0, eviction_policy="evict_first")
            more += tile.to(tl.float32) * state[None, :]
    scale = 1.0
    if NORM:
        scale = tl.rsqrt(tl.sum(squares) / WIDTH + eps)
    result = tl.sum(sums, axis=1) * scale
    if GATED:
        result = result * tl.sigmoid(result) * (tl.sum(more, axis=1) * scale)
    if PLUS:
        result += tl.load(plus + n, mask=n < num_rows, other=0.0).to(tl.float32)
    tl.store(out + n, result.to(out.dtype.element_ty), mask=n < num_rows)


@triton.jit
def _attend_kernel(
    qkv,
    cos,
    sin,
    position,
    keys,
    values,
    mixed_parts,
    best_parts,
    total_parts,
    length,
    scale,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: (heads, parts of what is cached). The first part begins with the token itself."""
    head, part = tl.program_id(0), tl.program_id(1)
    group = head // (HEADS // GROUPS)
    e = tl.arange(0, WIDTH)
    at = tl.load(position).to(tl.int32)
    cos_E = tl.load(cos + at * WIDTH + e).to(tl.float32)
    sin_E = tl.load(sin + at * WIDTH + e).to(tl.float32)
    query = _rotated(qkv + head * WIDTH, e, cos_E, sin_E, WIDTH) * scale
    kept = keys.dtype.element_ty
    key = _rotated(qkv + (HEADS + group) * WIDTH, e, cos_E, sin_E, WIDTH).to(kept)
    value = tl.load(qkv + (HEADS + GROUPS + group) * WIDTH + e)
    keys += group * length * WIDTH
    values += group * length * WIDTH
    first_of_group = (part == 0) & (head % (HEADS // GROUPS) == 0)
    there = (e < WIDTH) & first_of_group
    tl.store(keys + at * WIDTH + e, key, mask=there)
    tl.store(values + at * WIDTH + e, value, mask=there)

    best = tl.where(part == 0, tl.sum(query * key.to(tl.float32)), float("-inf"))
    total = tl.where(part == 0, 1.0, 0.0)
    mixed = tl.where(part == 0, value.to(tl.float32), 0.0)
    fraction = tl.cdiv(at, tl.num_programs(1))
    end = tl.minimum((part + 1) * fraction, at)
    for start in range(part * fraction, end, BLOCK):
        s = start + tl.arange(0, BLOCK)
        here = s[:, None] * WIDTH + e[None, :]
        seen = (s < end)[:, None]
        key_SE = tl.load(keys + here, mask=seen, other=0.0).to(tl.float32)
        value_SE = tl.load(values + here, mask=seen, other=0.0).to(tl.float32)
        scores = tl.where(s < end, tl.sum(key_SE * query[None, :], axis=1), float("-inf"))
        higher = tl.maximum(best, tl.max(scores))
        fade, weights = tl.exp(best - higher), tl.exp(scores - higher)
        mixed = mixed * fade + tl.sum(weights[:, None] * value_SE, axis=0)
        total = total * fade + tl.sum(weights)
        best = higher
    place = part * HEADS + head
    tl.store(mixed_parts + place * WIDTH + e, mixed)
    tl.store(best_parts + place, best)
    tl.store(total_parts + place, total)


@triton.jit
def _rotated(x, e, cos_E, sin_E, WIDTH: tl.constexpr):
    other = tl.load(x + (e + WIDTH // 2) % WIDTH).to(tl.float32)
    return tl.load(x + e).to(tl.float32) * cos_E + other * sin_E


@triton.jit
def _merge_kernel(
    mixed_parts,
    best_parts,
    total_parts,
    out,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One program a head."""
    head = tl.program_id(0)
    e = tl.arange(0, WIDTH)
    place = tl.arange(0, PARTS) * HEADS + head
    best = tl.load(best_parts + place)
    weights = tl.exp(best - tl.max(best))
    total = tl.sum(weights * tl.load(total_parts + place))
    mixed = tl.load(mixed_parts + place[:, None] * WIDTH + e[None, :])
    result = tl.sum(weights[:, None] * mixed, axis=0) / total
    tl.store(out + head * WIDTH + e, result.to(out.dtype.element_ty))
