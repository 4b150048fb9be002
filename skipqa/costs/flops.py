"""FLOPs and memory, counted by running: on any device, also on `meta`, where nothing is computed.

Enters: a callable. Leaves: the FLOPs that torch's counter saw (matrix products and convolutions
only, a multiply and an add counted as two) and the peak of live tensors. The formulas are next to
the networks they describe; tests compare them with these counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode


def _attention_flops(
    query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any
) -> int:
    return 2 * query.numel() * key[-2] + 2 * query[:-1].numel() * key[-2] * value[-1]


# torch's counter knows the attention kernels for GPUs but not the one for CPUs.
_CPU_ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}


def count_flops(run: Callable[[], Any]) -> int:
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION) as counter:
        run()
    return counter.get_total_flops()


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a system with its FLOPs by formula, and how to check them.

    `prepare` makes modules and inputs on the current default device and returns the run.
    """

    name: str
    flops: int
    prepare: Callable[[], Callable[[], object]]
    always: bool = False  # also runs for a question that the drafter answers

    def counted_flops(self) -> int:
        with torch.device("meta"):
            run = self.prepare()
        return count_flops(run)


def peak_activation_bytes(run: Callable[[], Any]) -> int:
    """The peak bytes of tensors allocated while running. Weights allocated before do not count, and
    attention is taken to be a fused kernel, which stores no matrix of scores."""
    with torch.no_grad(), _FusedAttention(), _LivingTensors() as living:
        result = run()
    del result
    return living.peak


class _FusedAttention(TorchFunctionMode):
    """The peak depends on shapes alone, and on `meta` torch would decompose attention."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            query, _, value = args[:3]
            return query.new_empty((*query.shape[:-1], value.shape[-1]))
        return func(*args, **(kwargs or {}))


class _LivingTensors(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # An input was allocated before; a view of it is no new memory.
        entering = {
            x.untyped_storage()._cdata for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for leaf in tree_iter(result):
            if isinstance(leaf, Tensor):
                self._watch(leaf, entering)
        return result

    def _watch(self, tensor: Tensor, entering: set[int]) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or key in entering:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
