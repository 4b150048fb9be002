"""Several processes that train one module as one would.

A step of the optimiser may take several batches. They are divided among the processes, and the
gradient is the mean over all of them, wherever each was computed, and running statistics are those
of one process that sees them all: the number of processes changes nothing but rounding.

`ALONE` is one process, and needs nothing. `Replicated` has the whole module in every process (DDP).
`Sharded` divides parameters, gradients and the optimiser's state among them (FSDP2): a layer that
the launcher names is gathered when it is computed; what belongs to none is whole during a step, and
without named layers that is all of it, as in ZeRO-2.

Enters: the environment that `accelerate launch` or `torchrun` sets. Leaves: a `Processes` for the
loop and the run. It knows nothing of what is trained.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from skipqa.errors import UserError

# As `accelerate launch` sets them for its workers, from a config or from its options
USE_FSDP, FSDP_VERSION = "ACCELERATE_USE_FSDP", "FSDP_VERSION"
RESHARD, LAYERS = "FSDP_RESHARD_AFTER_FORWARD", "FSDP_TRANSFORMER_CLS_TO_WRAP"
USE_DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"


class Processes(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def count(self) -> int: ...

    def wrap(self, objective: nn.Module) -> nn.Module:
        """What computes a loss so that gradients are shared. The parameters of `objective` may be
        other tensors afterwards, each with a part in every process."""
        ...

    def unshared(self, wrapped: nn.Module) -> AbstractContextManager[None]:
        """In the block gradients add up here: more batches of the step follow."""
        ...

    def statistics(self, module: nn.Module) -> AbstractContextManager[None]:
        """Around the batches of a step: the running statistics of batch normalisation are
        afterwards those of all batches in their order."""
        ...

    def whole(self, tensor: Tensor) -> Tensor:
        """A parameter, or what is divided like one; all processes have to ask for it."""
        ...

    def divided(self, whole: Tensor, parameter: Tensor) -> Tensor:
        """A tensor of its shape, divided like it."""
        ...

    def here(self, tensor: Tensor) -> Tensor:
        """The part that is in this process."""
        ...

    def mean(self, value: Tensor) -> Tensor:
        """Over all processes."""
        ...

    def first_says(self, here: bool) -> bool:
        """What holds in the first process, for all of them to do the same."""
        ...

    def meet(self) -> None:
        """Waits until all are here."""
        ...


class _Undivided:
    """Every process has all of a parameter."""

    __slots__ = ()

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor

    def divided(self, whole: Tensor, parameter: Tensor) -> Tensor:
        return whole

    def here(self, tensor: Tensor) -> Tensor:
        return tensor


@dataclass(frozen=True, slots=True)
class Alone(_Undivided):
    rank: int = 0
    count: int = 1

    def wrap(self, objective: nn.Module) -> nn.Module:
        return objective

    def unshared(self, wrapped: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def statistics(self, module: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def mean(self, value: Tensor) -> Tensor:
        return value

    def first_says(self, here: bool) -> bool:
        return here

    def meet(self) -> None:
        pass


ALONE = Alone()


@dataclass(frozen=True, slots=True)
class _Several:
    """What processes have in common that talk through torch's default group."""

    rank: int
    count: int

    @contextmanager
    def statistics(self, module: nn.Module) -> Iterator[None]:
        norms = [norm for norm in module.modules() if isinstance(norm, _BatchNorm)]
        tracking = [norm for norm in norms if norm.running_mean is not None]
        before = [_statistics(norm) for norm in tracking]
        yield
        for norm, start in zip(tracking, before, strict=True):
            self._join_statistics(norm, start)

    def _join_statistics(self, norm: _BatchNorm, start: Tensor) -> None:
        """A batch moves them from x to (1 - momentum) x + c, several to a power of that factor
        times x plus another c. The moves of the processes, one after the other, are those of all
        batches."""
        assert norm.momentum is not None, "the mean over all batches ever seen is not supported"
        keep = 1 - norm.momentum
        moved = _statistics(norm) - start
        moved[1:] += start[1:] * (1 - keep ** moved[0])
        moves = [torch.empty_like(moved) for _ in range(self.count)]
        distributed.all_gather(moves, moved)
        now = start.clone()
        for move in moves:
            now[1:] = now[1:] * keep ** move[0] + move[1:]
            now[0] += move[0]
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.copy_(now[0])
        norm.running_mean.copy_(now[1:].chunk(2)[0])
        norm.running_var.copy_(now[1:].chunk(2)[1])

    def mean(self, value: Tensor) -> Tensor:
        total = value.detach().clone()
        distributed.all_reduce(total)
        return total / self.count

    def first_says(self, here: bool) -> bool:
        said = torch.tensor([int(here)], device=_device())
        distributed.broadcast(said, 0)
        return bool(said)

    def meet(self) -> None:
        distributed.barrier()


@dataclass(frozen=True, slots=True)
class Replicated(_Several, _Undivided):
    def wrap(self, objective: nn.Module) -> nn.Module:
        """A part of the module may have no use for a batch."""
        return DistributedDataParallel(
            objective, forward_sync_buffers=False, find_unused_parameters=True
        )

    def unshared(self, wrapped: nn.Module) -> AbstractContextManager[None]:
        assert isinstance(wrapped, DistributedDataParallel)
        return wrapped.no_sync()


@dataclass(frozen=True, slots=True)
class Sharded(_Several):
    """All processes have to use the same parameters in a step. torch's modules for it are imported
    on use: they take as long as a small part's training."""

    layers: frozenset[str] = frozenset()  # names of classes, each instance gathered by itself
    reshard: bool = True  # after the forward pass; else parameters stay whole for the backward pass

    def wrap(self, objective: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(_device().type, (self.count,))
        for module in objective.modules():
            if type(module).__name__ in self.layers:
                fully_shard(module, mesh=mesh, reshard_after_forward=self.reshard)
        fully_shard(objective, mesh=mesh, reshard_after_forward=self.reshard)
        return objective

    @contextmanager
    def unshared(self, wrapped: nn.Module) -> Iterator[None]:
        from torch.distributed.fsdp import FSDPModule

        assert isinstance(wrapped, FSDPModule)
        wrapped.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            wrapped.set_requires_gradient_sync(True)

    def whole(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def divided(self, whole: Tensor, parameter: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(parameter, DTensor)
        placed = whole.to(parameter.device)
        return distribute_tensor(placed, parameter.device_mesh, parameter.placements)

    def here(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def chosen(environment: Mapping[str, str]) -> Processes:
    """By what the launcher has set; one process where it has set nothing."""
    rank, count = (int(environment.get(name, n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1)))
    if _is_set(environment, USE_DEEPSPEED):
        raise UserError(
            "DeepSpeed is not used here: configs/zero2.yaml divides gradients and the optimiser's "
            "state in the same way, by torch itself"
        )
    if count == 1:
        return ALONE
    if not _is_set(environment, USE_FSDP):
        return Replicated(rank, count)
    if environment.get(FSDP_VERSION, "2") != "2":
        raise UserError("set fsdp_version: 2 in the config; the first FSDP is not used here")
    named = environment.get(LAYERS, "").split(",")
    layers = frozenset(name.strip() for name in named if name.strip())
    return Sharded(rank, count, layers, reshard=environment.get(RESHARD, "true").lower() == "true")


@contextmanager
def joined() -> Iterator[Processes]:
    """The processes that this one was started with, connected for the length of the block."""
    found = chosen(os.environ)
    if found.count == 1:
        yield found
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", found.rank)))
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield found
    finally:
        distributed.destroy_process_group()


def _statistics(norm: _BatchNorm) -> Tensor:
    """[1 + 2 C]: how many batches, their mean and their variance."""
    buffers = (norm.num_batches_tracked, norm.running_mean, norm.running_var)
    return torch.cat([b.detach().double().flatten() for b in buffers if b is not None])


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "false").lower() == "true"


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
