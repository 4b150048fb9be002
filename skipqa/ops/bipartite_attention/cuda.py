"""The forward pass for a Hopper GPU: launches `gathered.cu`, from edges to results in one go.

Knows which inputs that kernel takes, how to cut the work and how much shared memory it needs; its
mathematics and order of work are in the source, the compiler in `nvrtc.py`. What does not fit goes
to the Triton kernels, which also hold the backward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from skipqa.ops.bipartite_attention import nvrtc

HERE = Path(__file__).parent
LOG2E = 1.0 / math.log(2.0)

WARPS, STAGES, UNITS = 5, 3, 6  # consumers of a program; buffers of keys and values; of queries
CHUNK, TILE = 104, 16  # passage tokens of a buffer, tokens of a tile
PROGRAMS = 256  # that a GPU of this kind runs at once: two a multiprocessor
MERGE_THREADS = 256
MOST_SHARED_MEMORY = 227 << 10  # of a program on this kind of GPU

TYPES = {torch.int32: "int", torch.int64: "long long"}


@dataclass(frozen=True, slots=True)
class Launch:
    parts: int  # of the passages of an item, worked on independently

    @staticmethod
    def choose(num_items: int, num_heads: int, num_passages: int) -> Launch:
        """As few parts as fill the GPU: each costs a round through memory."""
        wanted = max(1, min(num_passages, PROGRAMS // (num_items * num_heads)))
        return Launch(math.ceil(num_passages / math.ceil(num_passages / wanted)))


def fits(q: Tensor, k: Tensor, v: Tensor, num_passages: int) -> bool:
    """Whether the kernel takes these inputs: [B, V, H, D] and two of [N, H, D]."""
    num_tokens, width = q.shape[1], q.shape[3]
    return (
        q.is_cuda
        and q.dtype == k.dtype == v.dtype
        and q.dtype in (torch.bfloat16, torch.float16)
        and width in (64, 128)
        and 0 < num_tokens <= 1024
        and 0 < num_passages <= 32
        and all(_whole_vectors(x) for x in (q, k, v))
        and torch.cuda.get_device_capability(q.device)[0] == 9
        and nvrtc.available()
    )


def pays(q: Tensor, k: Tensor, v: Tensor, num_passages: int) -> bool:
    """Whether it is also the faster one: not where all tokens of an item fit one Triton tile."""
    num_items, num_tokens, num_heads, _ = q.shape
    return (num_tokens > 160 or num_items * num_heads < 192) and fits(q, k, v, num_passages)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    edges: Tensor,
    lengths: Tensor,
    scale: float,
    launch: Launch,
) -> tuple[Tensor, Tensor]:
    """The attention rows and their log-sum-exp (base 2), [B, V, H, D] and [B, V, H]."""
    num_items, num_tokens, num_heads, width = q.shape
    num_passages, parts = edges.shape[2], launch.parts
    assert math.ceil(num_passages / parts) * (parts - 1) < num_passages, "a part without a passage"
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    state, state_lse = out, lse
    if parts > 1:
        state = torch.empty(num_items, parts, *q.shape[1:], dtype=q.dtype, device=q.device)
        state_lse = torch.empty(state.shape[:4], dtype=torch.float32, device=q.device)
    if edges.data_ptr() % 16:  # rows are read 16 bytes at a time
        edges = edges.clone()
    if lengths.dtype not in TYPES:
        lengths = lengths.long()
    wide = num_passages > 16
    macros: list[tuple[str, int | str]] = [
        ("D", width),
        ("H", num_heads),
        ("Q_TOKEN", q.stride(1)),
        ("K_TOKEN", k.stride(0)),
        ("V_TOKEN", v.stride(0)),
        ("LENGTH", TYPES[lengths.dtype]),
        ("MASK", "unsigned int" if wide else "unsigned short"),
    ]
    if q.dtype == torch.float16:
        macros.append(("HALF", 1))
    if bias is not None:
        macros.append(("BIAS", 1))
    kernels = _kernels(q.device, tuple(macros))
    kernels["attend"](
        (num_heads, parts, num_items),
        32 * (WARPS + 1),
        (
            q,
            k,
            v,
            lse if bias is None else bias.float(),
            edges,
            lengths,
            out,
            lse,
            state,
            state_lse,
            num_tokens,
            num_passages,
            parts,
            q.stride(0),
            q.stride(2),
            k.stride(1),
            v.stride(1),
            scale * LOG2E,
        ),
        _shared_memory(num_tokens, num_passages, width, wide),
    )
    if parts > 1:
        heads_a_program = MERGE_THREADS * 8 // width
        kernels["merge"](
            (num_tokens, math.ceil(num_heads / heads_a_program), num_items),
            MERGE_THREADS,
            (edges, lengths, out, lse, state, state_lse, num_tokens, num_passages, parts),
        )
    return out, lse


def _shared_memory(num_tokens: int, num_passages: int, width: int, wide: bool) -> int:
    """Bytes of a program, as the source lays them out."""
    pitch = 2 * width + 16
    barriers = 8 * (2 * STAGES + 8 + 2 * UNITS)
    passages, tokens = 3 * 4 * 32, 2 * TILE * UNITS
    words = 4 * num_passages * math.ceil(num_tokens / 32)
    masks = (4 if wide else 2) * num_tokens
    return (STAGES * CHUNK + UNITS * TILE) * pitch + barriers + passages + tokens + words + masks


@cache
def _kernels(
    device: torch.device, macros: tuple[tuple[str, int | str], ...]
) -> dict[str, nvrtc.Kernel]:
    shape = (("WARPS", WARPS), ("STAGES", STAGES), ("UNITS", UNITS))
    kernels = {
        name: nvrtc.compile_kernel(HERE / source, shape + macros, name, device)
        for name, source in (("attend", "gathered.cu"), ("merge", "merge.cu"))
    }
    kernels["attend"].allow_shared_memory(MOST_SHARED_MEMORY)
    return kernels


def _whole_vectors(x: Tensor) -> bool:
    """Rows are read 16 bytes at a time, at offsets that 32 bits hold."""
    steps = x.stride()
    return (
        steps[-1] == 1
        and all(step % 8 == 0 for step in steps[:-1])
        and x.data_ptr() % 16 == 0
        and x.numel() < 1 << 31
    )
