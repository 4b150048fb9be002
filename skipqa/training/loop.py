"""One optimisation: AdamW, warm-up and cosine decay, clipping, weight averaging, resumable.

Enters: a module and `loss(step)`, which draws the batch of that step, so that the step number is
the only state of the data. Leaves: the exponential moving average of the module and, in the run's
folder, the losses and the state to resume from. The state of a finished optimisation stays until
the run drops it, so that what follows can be repeated without training again.
"""

from __future__ import annotations

import bisect
import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn

from skipqa.config import Between
from skipqa.errors import UserError
from skipqa.files import atomic
from skipqa.training.run import Run

M = TypeVar("M", bound=nn.Module)
LOG_EVERY = 50
MOST_SAVING = 0.05  # of the time, however large the network is
RAREST_S = 600.0  # between two saves, however slow the disk is
Loss = Callable[[int], Tensor]  # of a step
# As settings
LearningRate = Annotated[float, Between(1e-8, 1.0)]
Decay = Annotated[float, Between(0.0, 10.0)]


class Diverged(UserError):
    """The loss stopped being a number."""

    def __init__(self, name: str, loss: float, step: int) -> None:
        super().__init__(
            f"{name} diverged, its loss is {loss} at step {step}: try a lower lr (--set) or "
            f"another seed, in another folder"
        )


@dataclass(frozen=True, slots=True)
class Optimisation:
    """Linear warm-up over `warmup` steps, then a cosine decay to 1 % of `lr`."""

    steps: int
    lr: float
    warmup: int = 100
    weight_decay: float = 0.05
    ema_decay: float = 0.995

    def lr_at(self, step: int) -> float:
        rise = min(1.0, (step + 1) / max(1, self.warmup))
        fall = 0.5 * (1 + math.cos(math.pi * step / max(1, self.steps)))
        return self.lr * rise * (0.01 + 0.99 * fall)


def steps_for(epochs: float, groups: Sequence[Tensor], batch: int) -> int:
    """So many epochs over the groups, at least two steps."""
    return max(2, int(epochs * sum(map(len, groups)) / batch))


def fit(
    name: str,
    module: M,
    loss: Loss,
    optimisation: Optimisation,
    run: Run,
    lr_scales: Sequence[tuple[nn.Module, float]] = (),
) -> M:
    """Train `module` in place and return its moving average. The parts in `lr_scales` have their
    own factor on the learning rate."""
    averaged = copy.deepcopy(module)
    optimiser = _optimiser(module, lr_scales, optimisation.weight_decay)
    state = _State(run.state(name), module, averaged, optimiser)
    if (first := state.load()) == optimisation.steps:
        return averaged.eval()
    mean: list[Tensor] = list(averaged.parameters())
    current: list[Tensor] = list(module.parameters())
    module.train()
    saved_at, saving = time.monotonic(), 0.0
    for step in range(first, optimisation.steps):
        for group in optimiser.param_groups:
            group["lr"] = optimisation.lr_at(step) * group["lr_scale"]
        # Dropout and draws depend on the step alone: a resumed run takes the same path.
        _seed(run.seed * 1_000_003 + step)
        value = loss(step)
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        with torch.no_grad():  # a young average decays faster, or it would remember the start
            decay = min(optimisation.ema_decay, (step + 1) / (step + 10))
            torch._foreach_lerp_(mean, current, 1 - decay)
        every_s = run.save_every_s and max(run.save_every_s, min(saving / MOST_SAVING, RAREST_S))
        late = time.monotonic() - saved_at > every_s
        if late or step % LOG_EVERY == 0 or step == optimisation.steps - 1:
            if not math.isfinite(number := float(value.detach())):
                raise Diverged(name, number, step)
            run.progress(name, step + 1, optimisation.steps, number)
            run.record(name, step, loss=number)
        if late:
            started = time.monotonic()
            state.save(step + 1)
            saved_at = time.monotonic()
            saving = saved_at - started
    state.save(optimisation.steps, finished=True)
    return averaged.eval()


def _seed(seed: int) -> None:
    """As `torch.manual_seed`, which on a machine without an accelerator writes down its caller's
    whole stack three times, for devices that may yet come: most of a small network's step."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@dataclass(frozen=True, slots=True)
class _State:
    """What an optimisation goes on from; of a finished one, its result."""

    path: Path
    module: nn.Module
    averaged: nn.Module
    optimiser: torch.optim.Optimizer

    def save(self, step: int, *, finished: bool = False) -> None:
        for mean, buffer in zip(self.averaged.buffers(), self.module.buffers(), strict=True):
            mean.copy_(buffer)  # running statistics are means already
        state: dict[str, Any] = {"step": step, "averaged": self.averaged.state_dict()}
        if not finished:
            state["module"] = self.module.state_dict()
            state["optimiser"] = self.optimiser.state_dict()
        with atomic(self.path) as partial:
            torch.save(state, partial)

    def load(self) -> int:
        """The first step that is still to be made."""
        if not self.path.exists():
            return 0
        state = torch.load(self.path, map_location="cpu", weights_only=True)
        self.averaged.load_state_dict(state["averaged"])
        if "module" in state:
            self.module.load_state_dict(state["module"])
            self.optimiser.load_state_dict(state["optimiser"])
        return int(state["step"])


def _optimiser(
    module: nn.Module, lr_scales: Sequence[tuple[nn.Module, float]], weight_decay: float
) -> torch.optim.Optimizer:
    scales = {id(p): lr_scale for part, lr_scale in lr_scales for p in part.parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            decay = weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((scales.get(id(parameter), 1.0), decay), []).append(parameter)
    return torch.optim.AdamW(
        [{"params": p, "lr_scale": s, "weight_decay": d} for (s, d), p in groups.items()],
        betas=(0.9, 0.95),
        eps=1e-8,
        fused=True,
    )


def batches(groups: Sequence[Tensor], size: int, seed: int) -> Callable[[int], Tensor]:
    """`step -> indices`: the groups shuffled together anew each epoch, none left out."""

    def cut(order: Tensor, generator: torch.Generator) -> list[Tensor]:
        *before, last = order.split(size)
        if before and len(last) == 1:  # nothing can be standardised over one
            before[-1:], last = (), torch.cat((before[-1], last))
        return [*before, last]

    return _epochs(groups, seed, cut)


def bucketed(
    groups: Sequence[Tensor],
    lengths: Tensor,
    size: int,
    seed: int,
    *,
    most: int,
    near: int = 32,
) -> Callable[[int], Tensor]:
    """As `batches`, with texts of similar length together, `near` batches sorted at a time. A batch
    of long texts has fewer, so that it holds at most `most` tokens when padded."""

    def cut(order: Tensor, generator: torch.Generator) -> list[Tensor]:
        found: list[Tensor] = []
        for part in order.split(near * size):
            longest_first = part[lengths[part].argsort(stable=True, descending=True)]
            while len(longest_first):
                count = min(size, max(1, most // int(lengths[longest_first[0]])))
                found.append(longest_first[:count])
                longest_first = longest_first[count:]
        return [found[i] for i in torch.randperm(len(found), generator=generator)]

    return _epochs(groups, seed, cut)


def _epochs(
    groups: Sequence[Tensor],
    seed: int,
    cut: Callable[[Tensor, torch.Generator], list[Tensor]],
) -> Callable[[int], Tensor]:
    indices = torch.cat(list(groups))
    cached: dict[int, list[Tensor]] = {}

    def epoch(number: int) -> list[Tensor]:
        if number not in cached:
            cached.clear()
            generator = torch.Generator().manual_seed(seed * 7_919 + number)
            order = indices[torch.randperm(len(indices), generator=generator)]
            cached[number] = cut(order, generator)
        return cached[number]

    ends: list[int] = []  # of each epoch, the first step after it: bucketed epochs differ in length

    def at(step: int) -> Tensor:
        while not ends or ends[-1] <= step:
            ends.append((ends[-1] if ends else 0) + len(epoch(len(ends))))
        number = bisect.bisect_right(ends, step)
        return epoch(number)[step - (ends[number - 1] if number else 0)]

    return at
