"""The path for a GPU: launches the Triton kernels and ties them to autograd.

Knows launch shapes and buffers; the mathematics is in `forward.py` and `backward.py`, the order
of work in `schedule.py`. Why these shapes: NOTES.md. Either pass may be that of `cuda.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from skipqa.ops.bipartite_attention import backward, cuda, forward, schedule
from skipqa.ops.bipartite_attention.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Launch:
    """How the work is cut. Any value gives the same result; only the time differs."""

    parts: int  # of the passages of an item, worked on independently
    block_m: int  # tokens a tile
    block_n: int  # passage tokens a tile
    num_warps: int
    num_stages: int
    max_registers: int | None = None  # a thread, so that more programs fit a multiprocessor
    resident: bool = False  # all tokens of an item in one tile, results in registers


def choose_forward(num_items: int, num_tokens: int, num_passages: int, num_heads: int) -> Launch:
    """Measured on an H200 at a tenth of the edges (NOTES.md)."""
    if num_tokens > 160:
        # Tall tiles, many small programs: registers capped so that three fit a multiprocessor.
        return Launch(num_passages, 64 if num_tokens > 320 else 32, 64, 4, 1, max_registers=168)
    if num_items * num_heads < 192:  # too few programs: the passages are spread over more
        return Launch(num_passages, 16, 64, 4, 2, max_registers=128)
    if num_tokens <= 64:
        return Launch(1, 64, 64, 4, 3, resident=True)
    return Launch(1, 16, 128, 4, 2)


def choose_backward(num_items: int, num_tokens: int, num_passages: int, num_heads: int) -> Launch:
    enough = num_items * num_heads >= 192
    parts = min(4, num_passages) if enough else num_passages
    return Launch(parts, 32 if num_tokens > 160 else 16, 64, 4, 2)


def bipartite_attention(
    q_BVHD: Tensor,
    k_NHD: Tensor,
    v_NHD: Tensor,
    edges_BVK: Tensor,
    lengths_BK: Tensor,
    bias_BVK: Tensor | None,
    scale: float,
    *,
    forward_launch: Launch | cuda.Launch | None = None,
    backward_launch: Launch | cuda.Backward | None = None,
) -> Tensor:
    num_items, num_tokens, num_heads, _ = q_BVHD.shape
    shape = (num_items, num_tokens, edges_BVK.shape[2], num_heads)
    out: Tensor = _Attention.apply(
        _unit_stride(q_BVHD),
        _unit_stride(k_NHD),
        _unit_stride(v_NHD),
        None if bias_BVK is None else bias_BVK.contiguous(),
        edges_BVK.contiguous(),
        lengths_BK,
        scale,
        forward_launch or choose_forward(*shape),
        backward_launch or choose_backward(*shape),
    )
    return out


def plan_for(edges: Tensor, lengths: Tensor, launch: Launch) -> Schedule:
    return schedule.build(
        edges, lengths, parts=launch.parts, block_m=launch.block_m, block_n=launch.block_n
    )


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        edges: Tensor,
        lengths: Tensor,
        scale: float,
        launch: Launch | cuda.Launch,
        backward_launch: Launch | cuda.Backward,
    ) -> Tensor:
        if isinstance(launch, cuda.Launch):
            out, lse = cuda.attend(q, k, v, bias, edges, lengths, scale, launch)
        else:
            plan = plan_for(edges, lengths, launch)
            out, lse = attend(q, k, v, bias, edges, lengths, plan, scale, launch)
        ctx.save_for_backward(q, k, v, bias, edges, lengths, out, lse)
        ctx.scale, ctx.launch = scale, backward_launch
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, edges, lengths, out, lse = ctx.saved_tensors
        gradients = gradients_of(
            q, k, v, bias, edges, lengths, out, lse, d_out.contiguous(), ctx.scale, ctx.launch
        )
        return *gradients, None, None, None, None, None


def gradients_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    edges: Tensor,
    lengths: Tensor,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    scale: float,
    launch: Launch | cuda.Backward,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Of queries, keys, values and bias, from those of the rows."""
    delta = torch.empty_like(lse, dtype=torch.float32)
    width = q.shape[3]
    block_d = max(16, triton.next_power_of_2(width))
    backward.delta_kernel[(triton.cdiv(lse.numel(), 32),)](
        out, d_out, delta, lse.numel(), D=width, BLOCK_D=block_d, BLOCK_R=32
    )
    if isinstance(launch, cuda.Backward):
        assert bias is None
        return *cuda.attend_backward(q, k, v, edges, lengths, lse, delta, d_out, scale), None
    plan = plan_for(edges, lengths, launch)
    return attend_backward(q, k, v, bias, edges, lengths, plan, lse, delta, d_out, scale, launch)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    edges: Tensor,
    lengths: Tensor,
    plan: Schedule,
    scale: float,
    launch: Launch,
) -> tuple[Tensor, Tensor]:
    """The attention rows and their log-sum-exp (base 2), [B, V, H, D] and [B, V, H]."""
    num_items, num_tokens, num_heads, width = q.shape
    num_passages = edges.shape[2]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=_sum_dtype(q), device=q.device)
    block_d = max(16, triton.next_power_of_2(width))
    if launch.resident:
        assert num_tokens <= launch.block_m
        forward.attend_resident_kernel[(num_heads, 1, num_items)](
            q,
            k,
            v,
            bias,
            edges,
            out,
            lse,
            plan.tiles,
            plan.part_steps,
            *q.stride()[:3],
            k.stride(1),
            v.stride(1),
            scale,
            num_tokens,
            num_passages,
            plan.tiles.shape[1] - 1,
            K_TOKEN=k.stride(0),
            V_TOKEN=v.stride(0),
            H=num_heads,
            D=width,
            BLOCK_D=block_d,
            BLOCK_M=launch.block_m,
            BLOCK_N=launch.block_n,
            HAS_BIAS=bias is not None,
            PRECISION=_precision(q),
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            maxnreg=launch.max_registers,
        )
        return out, lse
    state, state_lse = _state(q, launch)
    forward.attend_kernel[(num_heads, launch.parts, num_items)](
        q,
        k,
        v,
        bias,
        out,
        lse,
        state,
        state_lse,
        plan.rows,
        plan.tiles,
        plan.part_tile,
        plan.part_steps,
        plan.apart,
        plan.apart_count,
        *q.stride()[:3],
        k.stride(1),
        v.stride(1),
        scale,
        num_tokens,
        num_passages,
        plan.tiles.shape[1] - 1,
        K_TOKEN=k.stride(0),
        V_TOKEN=v.stride(0),
        H=num_heads,
        D=width,
        BLOCK_D=block_d,
        BLOCK_M=launch.block_m,
        BLOCK_N=launch.block_n,
        PARTS=launch.parts,
        MEETS_AGAIN=triton.cdiv(num_passages, launch.parts) > 1,
        HAS_BIAS=bias is not None,
        PRECISION=_precision(q),
        INTERPRETED=not q.is_cuda,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        maxnreg=launch.max_registers,
    )
    if launch.parts > 1:
        forward.merge_kernel[(num_tokens, num_items)](
            edges,
            lengths,
            out,
            lse,
            state,
            state_lse,
            plan.apart,
            plan.apart_count,
            num_tokens,
            num_passages,
            H=num_heads,
            D=width,
            BLOCK_H=triton.next_power_of_2(num_heads),
            BLOCK_D=block_d,
            BLOCK_K=triton.next_power_of_2(num_passages),
            PARTS=launch.parts,
            num_warps=4,
        )
    return out, lse


def attend_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    edges: Tensor,
    lengths: Tensor,
    plan: Schedule,
    lse: Tensor,
    delta: Tensor,
    d_out: Tensor,
    scale: float,
    launch: Launch,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    num_items, num_tokens, num_heads, width = q.shape
    num_passages = edges.shape[2]
    assert plan.rows.shape[2] == launch.block_m
    d_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    d_k = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    d_v = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    d_bias = None
    if bias is not None:  # a pair without an edge has no gradient, and no program visits it
        d_bias = torch.zeros(num_heads, *edges.shape, dtype=torch.float32, device=q.device)
    state, _ = _state(q, launch)
    block_d = max(16, triton.next_power_of_2(width))
    backward.attend_backward_kernel[(num_heads, launch.parts, num_items)](
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
        plan.rows,
        plan.first_tile,
        plan.degree,
        plan.part_start,
        plan.apart,
        plan.apart_count,
        lengths,
        *q.stride()[:3],
        k.stride(1),
        v.stride(1),
        scale,
        num_tokens,
        num_passages,
        plan.tiles.shape[1] - 1,
        K_TOKEN=k.stride(0),
        V_TOKEN=v.stride(0),
        H=num_heads,
        D=width,
        BLOCK_D=block_d,
        BLOCK_M=launch.block_m,
        BLOCK_N=launch.block_n,
        PARTS=launch.parts,
        MEETS_AGAIN=triton.cdiv(num_passages, launch.parts) > 1,
        HAS_BIAS=bias is not None,
        PRECISION=_precision(q),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        maxnreg=launch.max_registers,
    )
    if launch.parts > 1:
        backward.merge_backward_kernel[(num_tokens, num_items)](
            edges,
            lengths,
            d_q,
            state,
            plan.apart,
            plan.apart_count,
            num_tokens,
            num_passages,
            H=num_heads,
            D=width,
            BLOCK_H=triton.next_power_of_2(num_heads),
            BLOCK_D=block_d,
            BLOCK_K=triton.next_power_of_2(num_passages),
            PARTS=launch.parts,
            num_warps=4,
        )
    if bias is None or d_bias is None:
        return d_q, d_k, d_v, None
    return d_q, d_k, d_v, d_bias.sum(0).to(bias.dtype)


def _state(q: Tensor, launch: Launch) -> tuple[Tensor, Tensor]:
    """Room for running results, [B, P, V, H, D] and [B, P, V, H]."""
    num_items, num_tokens, num_heads, width = q.shape
    slots = (num_items, launch.parts, num_tokens, num_heads)
    return (
        torch.empty(*slots, width, dtype=q.dtype, device=q.device),
        torch.empty(slots, dtype=_sum_dtype(q), device=q.device),
    )


def _sum_dtype(x: Tensor) -> torch.dtype:
    """Of a log-sum-exp: its rounding is an error of all weights of a row together, so float32 asks
    for more than float32, and for a logarithm that is no approximation."""
    return torch.float64 if x.dtype == torch.float32 else torch.float32


def _precision(x: Tensor) -> str:
    """float32 stays float32: tf32 would lose 13 bits that the caller asked to keep."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
