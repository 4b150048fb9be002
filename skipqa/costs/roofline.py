"""Times on a GPU, and the ceilings they are compared with.

Enters: a function that launches work. Leaves: the median of its time with the spread, and the
machine's measured ceilings (bytes and FLOPs per second). It knows no model.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from skipqa.backbones.generation.graphs import capture


@dataclass(frozen=True, slots=True)
class Timing:
    median_us: float
    p10_us: float
    p90_us: float
    repeats: int

    @staticmethod
    def of(microseconds: list[float]) -> Timing:
        ordered = sorted(microseconds)
        last = len(ordered) - 1
        return Timing(
            ordered[round(0.5 * last)],
            ordered[round(0.1 * last)],
            ordered[round(0.9 * last)],
            len(ordered),
        )


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this GPU reached in this run."""

    bytes_per_second: float  # a device-to-device copy, read and written bytes together
    flops_per_second: float  # a large bf16 matrix product on random data

    def floor_us(self, flops: float, num_bytes: float) -> float:
        return 1e6 * max(flops / self.flops_per_second, num_bytes / self.bytes_per_second)


def time_gpu(run: Callable[[], Any], *, repeats: int = 20, graph: bool = True) -> Timing:
    """Device time of `run`, each time after its inputs have left the cache.

    A CUDA graph takes the host out of the measurement; work that needs the host while it runs
    (autograd's threads, a read-back) is timed without one.
    """
    replay = capture(run) if graph else run
    for _ in range(2):
        replay()
    pairs = []
    for _ in range(repeats):
        _cold_bytes().sum()  # reading, not writing: no dirty lines to be written back
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return Timing.of([1e3 * begin.elapsed_time(end) for begin, end in pairs])


def measure_ceilings() -> Ceilings:
    copied = _copy()
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = time_gpu(lambda: a @ b, repeats=10)
    return Ceilings(copied, 2 * 8192**3 / product.median_us * 1e6)


def _copy() -> float:
    """Bytes per second. Not as a graph, where a copy runs on the slower copy engine."""
    source = torch.empty(1 << 30, dtype=torch.int32, device="cuda").random_()
    target = torch.empty_like(source)
    time = time_gpu(lambda: target.copy_(source), repeats=10, graph=False)
    return 2 * source.nbytes / time.median_us * 1e6


def driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


@cache
def _cold_bytes() -> torch.Tensor:
    """More than any GPU's last-level cache."""
    return torch.zeros(48 << 20, dtype=torch.int32, device="cuda")
