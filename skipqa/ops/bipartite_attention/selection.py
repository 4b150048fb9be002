# mypy: disallow-untyped-defs=False
"""The selection pass on the GPU: which edges survive.

Enters: scores, or tokens and passages that have none yet. Leaves: the edge matrix. Nothing is read
back to the host, so it can be part of a CUDA graph. `dispatch.py` says what the rules mean.

Shape letters as there; T token and passage rows of all items together, E width of an edge vector,
S parts of a sum.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from skipqa.ops.bipartite_attention import reference

MAX_PAIRS = 1 << 15  # pairs of one item that a program holds in registers
MAX_SCORED_PAIRS = 1 << 12  # where it also computes their scores
MAX_ROWS = 1 << 10  # tokens and passages of all items: beyond, torch's products win (NOTES.md)

# The last bits of a number of 16 bits as float32: always the same, so not worth a look.
SHIFTS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}


def select_edges(
    scores_BVK: Tensor, lengths_BK: Tensor | None, top: float | None, degree: float | None
) -> Tensor:
    """The best pairs of each item, as `reference.top_edges`."""
    num_items, num_tokens, num_passages = scores_BVK.shape
    pairs = num_tokens * num_passages
    assert pairs <= MAX_PAIRS
    edges_BVK = torch.empty(scores_BVK.shape, dtype=torch.bool, device=scores_BVK.device)
    _select_kernel[(num_items,)](
        scores_BVK.detach().contiguous(),
        lengths_BK,
        _kept_by_passages(num_tokens, num_passages, top, degree, scores_BVK.device),
        edges_BVK,
        pairs,
        num_passages,
        HAS_LENGTHS=lengths_BK is not None,
        SHIFT=SHIFTS.get(scores_BVK.dtype, 0),
        BLOCK=triton.next_power_of_2(pairs),
        BLOCK_K=triton.next_power_of_2(num_passages),
        num_warps=4 if pairs <= 2048 else 16,
    )
    return edges_BVK


def pays(num_items: int, num_tokens: int, num_passages: int) -> bool:
    """Whether `choose_edges` takes items of this size, and is faster than torch's products."""
    num_rows = num_items * (num_tokens + num_passages)
    return num_rows <= MAX_ROWS and _fits(num_tokens, num_passages)


def choose_edges(
    tokens_BVd: Tensor,
    passages_BKp: Tensor,
    weights: tuple[Tensor, Tensor],
    lengths_BK: Tensor,
    kind: Literal["sigmoid", "cosine"],
    top: float | None,
    degree: float | None,
) -> tuple[Tensor, Tensor]:
    """`compatibility` of projected tokens and passages (weights [E, d] and [E, p]) with the choice
    among them, in two launches instead of six: scores and edges, both [B, V, K]."""
    num_items, num_tokens, width = tokens_BVd.shape
    num_passages, passage_width = passages_BKp.shape[1:]
    token_rows, edge_width = num_items * num_tokens, len(weights[0])
    assert _fits(num_tokens, num_passages)
    block_v, block_k = _block(num_tokens), _block(num_passages)
    num_rows = token_rows + num_items * num_passages
    block_r, splits = (16, 4) if num_rows <= 256 else (64, 2)  # few rows: many small programs
    projected_STE = torch.empty(
        splits, num_rows, edge_width, dtype=torch.float32, device=tokens_BVd.device
    )
    token_tiles = triton.cdiv(token_rows, block_r)
    tiles = token_tiles + triton.cdiv(num_items * num_passages, block_r)
    precision = "ieee" if tokens_BVd.dtype == torch.float32 else "tf32"
    _project_kernel[(tiles, triton.cdiv(edge_width, 16), splits)](
        tokens_BVd.contiguous(),
        passages_BKp.contiguous(),
        *(w.contiguous() for w in weights),
        projected_STE,
        token_rows,
        num_items * num_passages,
        token_tiles,
        WIDTH=width,
        PASSAGE_WIDTH=passage_width,
        EDGE_WIDTH=edge_width,
        BLOCK_R=block_r,
        BLOCK_E=16,
        BLOCK_I=512 if block_r == 16 else 128,
        PRECISION=precision,
        num_warps=4,
        num_stages=3,
    )
    scores_BVK = tokens_BVd.new_empty(num_items, num_tokens, num_passages)
    edges_BVK = torch.empty_like(scores_BVK, dtype=torch.bool)
    _choose_kernel[(num_items,)](
        projected_STE,
        lengths_BK,
        _kept_by_passages(num_tokens, num_passages, top, degree, tokens_BVd.device),
        scores_BVK,
        edges_BVK,
        edge_width**-0.5,
        token_rows,
        num_rows,
        num_tokens,
        num_passages,
        SPLITS=splits,
        COSINE=kind == "cosine",
        EDGE_WIDTH=edge_width,
        BLOCK_V=block_v,
        BLOCK_K=block_k,
        BLOCK_E=min(128 if block_v <= 64 else 32, _block(edge_width)),
        SHIFT=SHIFTS[scores_BVK.dtype],
        PRECISION=precision,
        num_warps=8 if block_v <= 64 else 16,
        num_stages=1,
    )
    return scores_BVK, edges_BVK


def _fits(num_tokens: int, num_passages: int) -> bool:
    return _block(num_tokens) * _block(num_passages) <= MAX_SCORED_PAIRS


def _block(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


@lru_cache(maxsize=64)
def _kept_by_passages(
    num_tokens: int,
    num_passages: int,
    top: float | None,
    degree: float | None,
    device: torch.device,
) -> Tensor:
    """How many edges an item keeps, by how many of its passages are there."""
    kept = [
        reference.num_edges_kept(num_tokens, present, top, degree)
        for present in range(num_passages + 1)
    ]
    return torch.tensor(kept, dtype=torch.int32, device=device)


@triton.jit
def _best(score, valid, count, SHIFT: tl.constexpr):
    """The `count` highest of the valid scores, of equal ones the first: bisects on their bits."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # + 0.0: both zeros get the same bits
    # Signed integers in the order of the floats.
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT
    # The largest cut with at least `count` keys at or above it.
    low = tl.min(tl.where(valid, key, 0x7FFFFFFF), axis=0).to(tl.int64)
    high = tl.max(tl.where(valid, key, -0x7FFFFFFF), axis=0).to(tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        if tl.sum((valid & (key >= middle)).to(tl.int32), axis=0) >= count:
            low = middle
        else:
            high = middle - 1
    above = valid & (key > low)
    tied = valid & (key == low)
    room = count - tl.sum(above.to(tl.int32), axis=0)
    keep = above | (tied & (tl.cumsum(tied.to(tl.int32), axis=0) <= room))
    return keep & (count > 0)


@triton.jit
def _select_kernel(
    scores,
    lengths,
    kept_by_passages,
    edges,
    pairs,
    num_passages,
    HAS_LENGTHS: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One program an item."""
    item = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    valid = pair < pairs
    passage = pair % num_passages
    num_present = num_passages
    if HAS_LENGTHS:
        k = tl.arange(0, BLOCK_K)
        row = lengths + item * num_passages
        num_present = tl.sum((tl.load(row + k, mask=k < num_passages, other=0) > 0).to(tl.int32))
        valid &= tl.load(row + passage, mask=valid, other=0) > 0
    count = tl.load(kept_by_passages + num_present)
    score = tl.load(scores + item * pairs + pair, mask=valid, other=0.0).to(tl.float32)
    tl.store(edges + item * pairs + pair, _best(score, valid, count, SHIFT), mask=pair < pairs)


@triton.jit
def _project_kernel(
    tokens,
    passages,
    token_weight,
    passage_weight,
    projected,
    token_rows,
    passage_rows,
    token_tiles,
    WIDTH: tl.constexpr,
    PASSAGE_WIDTH: tl.constexpr,
    EDGE_WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_I: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: (tiles of rows, of columns, parts of the sum). Tokens with their weights, then passages
    with theirs; the parts side by side."""
    tile = tl.program_id(0)
    projected += tl.program_id(2) * (token_rows + passage_rows) * EDGE_WIDTH
    e = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    if tile < token_tiles:
        r = tile * BLOCK_R + tl.arange(0, BLOCK_R)
        _project(
            tokens, token_weight, projected, r, token_rows, e, WIDTH, EDGE_WIDTH, BLOCK_I, PRECISION
        )
    else:
        r = (tile - token_tiles) * BLOCK_R + tl.arange(0, BLOCK_R)
        _project(
            passages,
            passage_weight,
            projected + token_rows * EDGE_WIDTH,
            r,
            passage_rows,
            e,
            PASSAGE_WIDTH,
            EDGE_WIDTH,
            BLOCK_I,
            PRECISION,
        )


@triton.jit
def _project(
    x,
    weight,
    projected,
    r,
    num_rows,
    e,
    WIDTH: tl.constexpr,
    EDGE_WIDTH: tl.constexpr,
    BLOCK_I: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i = tl.arange(0, BLOCK_I)
    x_RI = x + r.to(tl.int64)[:, None] * WIDTH + i[None, :]
    w_EI = weight + e[:, None] * WIDTH + i[None, :]
    mask_R = (r < num_rows)[:, None]
    mask_E = (e < EDGE_WIDTH)[:, None]
    acc_RE = tl.zeros([r.shape[0], e.shape[0]], dtype=tl.float32)
    fraction: tl.constexpr = tl.cdiv(WIDTH, BLOCK_I)
    split = tl.program_id(2)
    splits = tl.num_programs(2)
    for block in range(fraction * split // splits, fraction * (split + 1) // splits):
        done = block * BLOCK_I
        inside = (done + i < WIDTH)[None, :]
        part_RI = tl.load(x_RI + done, mask=mask_R & inside, other=0.0)
        part_EI = tl.load(w_EI + done, mask=mask_E & inside, other=0.0)
        acc_RE = tl.dot(part_RI, tl.trans(part_EI), acc_RE, input_precision=PRECISION)
    tl.store(
        projected + r.to(tl.int64)[:, None] * EDGE_WIDTH + e[None, :],
        acc_RE,
        mask=mask_R & (e < EDGE_WIDTH)[None, :],
    )


@triton.jit
def _choose_kernel(
    projected,
    lengths,
    kept_by_passages,
    scores,
    edges,
    scale,
    token_rows,
    num_rows,
    num_tokens,
    num_passages,
    SPLITS: tl.constexpr,
    COSINE: tl.constexpr,
    EDGE_WIDTH: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    SHIFT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program an item: A_ij of all its pairs (equation 8 or B.4), then the best of them."""
    item = tl.program_id(0).to(tl.int64)
    v = tl.arange(0, BLOCK_V)
    k = tl.arange(0, BLOCK_K)
    e = tl.arange(0, BLOCK_E)
    in_v = v < num_tokens
    in_k = k < num_passages
    h_v = projected + (item * num_tokens + v)[:, None] * EDGE_WIDTH + e[None, :]
    h_k = projected + (token_rows + item * num_passages + k)[:, None] * EDGE_WIDTH + e[None, :]
    score_VK = tl.zeros([BLOCK_V, BLOCK_K], dtype=tl.float32)
    norm_V = tl.zeros([BLOCK_V], dtype=tl.float32)
    norm_K = tl.zeros([BLOCK_K], dtype=tl.float32)
    for done in range(0, EDGE_WIDTH, BLOCK_E):
        inside = (done + e < EDGE_WIDTH)[None, :]
        sum_VE = tl.zeros([BLOCK_V, BLOCK_E], dtype=tl.float32)
        sum_KE = tl.zeros([BLOCK_K, BLOCK_E], dtype=tl.float32)
        for split in tl.static_range(SPLITS):
            at = done + split * num_rows * EDGE_WIDTH
            sum_VE += tl.load(h_v + at, mask=in_v[:, None] & inside, other=0.0)
            sum_KE += tl.load(h_k + at, mask=in_k[:, None] & inside, other=0.0)
        part_VE = sum_VE.to(scores.dtype.element_ty)
        part_KE = sum_KE.to(scores.dtype.element_ty)
        score_VK = tl.dot(part_VE, tl.trans(part_KE), score_VK, input_precision=PRECISION)
        if COSINE:
            norm_V += tl.sum(sum_VE * sum_VE, axis=1)
            norm_K += tl.sum(sum_KE * sum_KE, axis=1)
    if COSINE:
        length_V = tl.maximum(tl.sqrt(norm_V), 1e-12)
        length_K = tl.maximum(tl.sqrt(norm_K), 1e-12)
        score_VK = score_VK / length_V[:, None] / length_K[None, :]
    else:
        score_VK = tl.sigmoid(score_VK * scale)
    score_VK = score_VK.to(scores.dtype.element_ty)  # the choice is among what the caller gets

    present_K = tl.load(lengths + item * num_passages + k, mask=in_k, other=0) > 0
    count = tl.load(kept_by_passages + tl.sum(present_K.to(tl.int32), axis=0))
    valid_VK = in_v[:, None] & present_K[None, :]
    keep = _best(
        tl.reshape(score_VK.to(tl.float32), [BLOCK_V * BLOCK_K]),
        tl.reshape(valid_VK, [BLOCK_V * BLOCK_K]),
        count,
        SHIFT,
    )
    at_VK = (item * num_tokens + v)[:, None] * num_passages + k[None, :]
    pair_VK = in_v[:, None] & in_k[None, :]
    tl.store(scores + at_VK, score_VK, mask=pair_VK)
    tl.store(edges + at_VK, tl.reshape(keep, [BLOCK_V, BLOCK_K]), mask=pair_VK)
