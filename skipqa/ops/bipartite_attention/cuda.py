"""The path for a Hopper GPU: launches `gathered.cu`, from edges to results in one go, and
`gathered_backward.cu`, their gradients.

Knows which inputs these kernels take, how to cut the work and how much shared memory it needs; the
mathematics and order of work are in the sources, the compiler in `nvrtc.py`. What does not fit goes
to the Triton kernels.
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

THREADS = 6 * 32  # of a program
STAGES, UNITS = 3, 5  # buffers of keys and values; of queries
STAGE_ROWS, UNIT_ROWS = 112, 16
PROGRAMS = 256  # that a GPU of this kind runs at once: two a multiprocessor
MOST_PARTS = 6  # programs of a cluster: of 8, not all clusters find room at once
BACKWARD_THREADS = 12 * 32
# Two stages of 128 keys and values, two tiles of 64 queries and gradients, a chunk's weights; then
# barriers, counts and lengths, two numbers and the token of a row.
BACKWARD_BUFFERS = 256 * (4 * 128 + 4 * 64) + 128 * 128 + 12 * 8 + 2 * 4 * 32 + 2 * 64 * 10
MOST_SHARED_MEMORY = 227 << 10  # of a program on this kind of GPU

TYPES = {torch.int32: "int", torch.int64: "long long"}


@dataclass(frozen=True, slots=True)
class Launch:
    parts: int  # of the passages of an item, worked on independently

    @staticmethod
    def choose(num_items: int, num_heads: int, num_passages: int) -> Launch:
        """As few parts as fill the GPU: each costs a round through memory."""
        parts = max(1, min(num_passages, PROGRAMS // (num_items * num_heads), MOST_PARTS))
        return Launch(math.ceil(num_passages / math.ceil(num_passages / parts)))


@dataclass(frozen=True, slots=True)
class Backward:
    """The gradients' kernel: a program a head of an item, so there is nothing to choose."""


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


def fits_backward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, num_passages: int) -> bool:
    return bias is None and q.shape[3] == 128 and fits(q, k, v, num_passages)


def pays_backward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, num_passages: int) -> bool:
    """Whether it is also the faster one: with a program a multiprocessor, and full tiles."""
    num_items, num_tokens, num_heads, _ = q.shape
    enough = num_items * num_heads >= PROGRAMS // 2 and num_tokens > 160
    return enough and fits_backward(q, k, v, bias, num_passages)


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
    assert parts <= MOST_PARTS
    assert math.ceil(num_passages / parts) * (parts - 1) < num_passages, "a part without a passage"
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    state, state_lse = out, lse
    if parts > 1:
        state = torch.empty(num_items, parts, *q.shape[1:], dtype=q.dtype, device=q.device)
        state_lse = torch.empty(state.shape[:4], dtype=torch.float32, device=q.device)
    edges, lengths = _aligned(edges), _counted(lengths)
    macros = [("D", width), ("PARTS", parts), *_macros(q, k, v, lengths, num_passages)]
    macros += [("STAGES", STAGES), ("UNITS", UNITS)]
    if bias is not None:
        macros.append(("BIAS", 1))
    _kernel("gathered.cu", "attend", q.device, tuple(macros))(
        (num_heads, parts, num_items),
        THREADS,
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
            q.stride(0),
            q.stride(2),
            k.stride(1),
            v.stride(1),
            scale * LOG2E,
        ),
        _shared_memory(num_tokens, num_passages, width),
    )
    return out, lse


def attend_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    edges: Tensor,
    lengths: Tensor,
    lse: Tensor,
    delta: Tensor,
    d_out: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values. `delta` is <out, d_out> of every row [B, V, H]."""
    num_items, num_tokens, num_heads, _ = q.shape
    num_passages = edges.shape[2]
    d_q, d_k, d_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    edges, lengths = _aligned(edges), _counted(lengths)
    macros = tuple(_macros(q, k, v, lengths, num_passages))
    _kernel("gathered_backward.cu", "attend_backward", q.device, macros)(
        (num_heads, num_items, 1),
        BACKWARD_THREADS,
        (
            q,
            k,
            v,
            edges,
            lengths,
            lse,
            delta,
            d_out,
            d_q,
            d_k,
            d_v,
            num_tokens,
            num_passages,
            q.stride(0),
            q.stride(2),
            k.stride(1),
            v.stride(1),
            scale,
            scale * LOG2E,
        ),
        BACKWARD_BUFFERS + _lists(num_tokens, num_passages),
    )
    return d_q, d_k, d_v


def _macros(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, num_passages: int
) -> list[tuple[str, int | str]]:
    macros: list[tuple[str, int | str]] = [
        ("H", q.shape[2]),
        ("Q_TOKEN", q.stride(1)),
        ("K_TOKEN", k.stride(0)),
        ("V_TOKEN", v.stride(0)),
        ("LENGTH", TYPES[lengths.dtype]),
        ("MASK", "unsigned int" if num_passages > 16 else "unsigned short"),
    ]
    return [*macros, ("HALF", 1)] if q.dtype == torch.float16 else macros


def _shared_memory(num_tokens: int, num_passages: int, width: int) -> int:
    """Bytes of a program, as the source lays them out."""
    buffers = STAGES * STAGE_ROWS * 2 * width + UNITS * UNIT_ROWS * (2 * width + 16)
    barriers = 8 * (3 * STAGES + 2 * UNITS)
    passages, tokens = 2 * 4 * 32, 2 * UNIT_ROWS * UNITS
    running = 4 * num_tokens
    return buffers + barriers + passages + tokens + running + _lists(num_tokens, num_passages)


def _lists(num_tokens: int, num_passages: int) -> int:
    """Bytes of the edges: tokens of each passage, passages of each token, the list of a passage."""
    bits = 4 * num_passages * math.ceil(num_tokens / 32)
    return bits + (4 if num_passages > 16 else 2) * num_tokens + 2 * num_tokens


@cache
def _kernel(
    source: str, name: str, device: torch.device, macros: tuple[tuple[str, int | str], ...]
) -> nvrtc.Kernel:
    kernel = nvrtc.compile_kernel(HERE / source, macros, name, device)
    kernel.allow_shared_memory(MOST_SHARED_MEMORY)
    return kernel


def _aligned(edges: Tensor) -> Tensor:
    """Rows are read 16 bytes at a time."""
    return edges.clone() if edges.data_ptr() % 16 else edges


def _counted(lengths: Tensor) -> Tensor:
    return lengths if lengths.dtype in TYPES else lengths.long()


def _whole_vectors(x: Tensor) -> bool:
    """Rows are read 16 bytes at a time, at offsets that 32 bits hold."""
    steps = x.stride()
    return (
        steps[-1] == 1
        and all(step % 8 == 0 for step in steps[:-1])
        and x.data_ptr() % 16 == 0
        and x.numel() < 1 << 31
    )
