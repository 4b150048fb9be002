"""One optimisation: AdamW, warm-up and cosine decay, clipping, weight averaging, resumable.

Enters: a module and `loss(draw)`, which draws the batch of that number, so that the number is the
only state of the data. A step takes the next batch, or several (`Run.accumulate`), divided among
the processes that train together (`processes.py`). Leaves: the exponential moving average of the
module and, in the run's folder, the losses and the state to resume from, which is that of the whole
module whatever the number of processes. The state of a finished optimisation stays until the run
drops it, so that what follows can be repeated without training again.
"""

from __future__ import annotations

import bisect
import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn

from skipqa.config import Between
from skipqa.errors import UserError
from skipqa.files import atomic
from skipqa.training.processes import Processes
from skipqa.training.run import Run

M = TypeVar("M", bound=nn.Module)
LOG_EVERY = 50
MOST_SAVING = 0.05  # of the time, however large the network is
MOMENTS = ("exp_avg", "exp_avg_sq")  # of the optimiser's state, those with a parameter's shape
RAREST_S = 600.0  # between two saves, however slow the disk is
Loss = Callable[[int], Tensor]  # of a batch, by its number
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
    saved = _Saved.read(run.state(name))
    first = saved.restore(module, averaged)
    if first == optimisation.steps:
        return averaged.eval()
    processes, draws = run.processes, _draws(run)
    objective = processes.wrap(_Objective(module, loss))
    optimiser = _optimiser(module, lr_scales, optimisation.weight_decay)
    saved.restore_optimiser(optimiser, processes)
    current: list[Tensor] = list(module.parameters())
    means = zip(averaged.parameters(), current, strict=True)
    mean: list[Tensor] = [processes.divided(full.detach(), like) for full, like in means]
    state = _State(run.state(name), module, averaged, mean, optimiser)
    module.train()
    saved_at, saving = time.monotonic(), 0.0
    for step in range(first, optimisation.steps):
        for group in optimiser.param_groups:
            group["lr"] = optimisation.lr_at(step) * group["lr_scale"]
        optimiser.zero_grad(set_to_none=True)
        batches_of_step = range(step * run.accumulate, (step + 1) * run.accumulate)
        with processes.statistics(module):
            value = _backward(objective, batches_of_step[draws], run)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        with torch.no_grad():  # a young average decays faster, or it would remember the start
            decay = min(optimisation.ema_decay, (step + 1) / (step + 10))
            own_mean, own = ([processes.here(t) for t in some] for some in (mean, current))
            torch._foreach_lerp_(own_mean, own, 1 - decay)
        every_s = run.save_every_s and max(run.save_every_s, min(saving / MOST_SAVING, RAREST_S))
        late = processes.first_says(time.monotonic() - saved_at > every_s)
        if late or step % LOG_EVERY == 0 or step == optimisation.steps - 1:
            if not math.isfinite(number := float(processes.mean(value))):
                raise Diverged(name, number, step)
            run.progress(name, step + 1, optimisation.steps, number)
            run.record(name, step, loss=number)
        if late:
            started = time.monotonic()
            state.save(step + 1, processes)
            saved_at = time.monotonic()
            saving = saved_at - started
    state.save(optimisation.steps, processes, finished=True)
    return averaged.eval()


class _Objective(nn.Module):
    """The loss as the forward pass of a module that has all parameters: whatever the loss calls of
    them, their gradients are shared."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, draw: int) -> Tensor:
        return self.loss(draw)


def _draws(run: Run) -> slice:
    """Which of a step's batches this process computes."""
    count, rank = run.processes.count, run.processes.rank
    if run.accumulate % count:
        raise UserError(
            f"{count} processes cannot divide {run.accumulate} batches of a step: set --accumulate "
            f"to a multiple of {count}"
        )
    own = run.accumulate // count
    return slice(rank * own, (rank + 1) * own)


def _backward(objective: nn.Module, draws: Sequence[int], run: Run) -> Tensor:
    """The gradient of the mean over these batches, and that mean."""
    total: Tensor | None = None
    for number, draw in enumerate(draws, 1):
        last = number == len(draws)
        # Dropout and draws depend on the batch alone: a resumed run takes the same path.
        _seed(run.seed * 1_000_003 + draw)
        with nullcontext() if last else run.processes.unshared(objective):
            value = objective(draw) / len(draws) if len(draws) > 1 else objective(draw)
            value.backward()
        total = value.detach() if total is None else total + value.detach()
    assert total is not None
    return total


def _seed(seed: int) -> None:
    """As `torch.manual_seed`, which on a machine without an accelerator writes down its caller's
    whole stack three times, for devices that may yet come: most of a small network's step."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@dataclass(frozen=True, slots=True)
class _Saved:
    """What a stopped optimisation left, if it left anything; of a finished one, its result."""

    state: Mapping[str, Any]

    @staticmethod
    def read(path: Path) -> _Saved:
        exists = path.exists()
        return _Saved(torch.load(path, map_location="cpu", weights_only=True) if exists else {})

    def restore(self, module: nn.Module, averaged: nn.Module) -> int:
        """The first step that is still to be made."""
        if not self.state:
            return 0
        averaged.load_state_dict(self.state["averaged"])
        if "module" in self.state:
            module.load_state_dict(self.state["module"])
        return int(self.state["step"])

    def restore_optimiser(self, optimiser: torch.optim.Optimizer, processes: Processes) -> None:
        if "optimiser" not in self.state:
            return
        saved = self.state["optimiser"]
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        moments = {
            number: {
                name: processes.divided(value, parameters[number]) if name in MOMENTS else value
                for name, value in of_parameter.items()
            }
            for number, of_parameter in saved["state"].items()
        }
        optimiser.load_state_dict({**saved, "state": moments})


@dataclass(frozen=True, slots=True)
class _State:
    """What an optimisation goes on from, with any number of processes."""

    path: Path
    module: nn.Module
    averaged: nn.Module
    mean: Sequence[Tensor]  # of the parameters; those of `averaged` themselves, or parts of them
    optimiser: torch.optim.Optimizer

    def save(self, step: int, processes: Processes, *, finished: bool = False) -> None:
        """The first process writes what all of them hold."""
        with torch.no_grad():
            for parameter, mean in zip(self.averaged.parameters(), self.mean, strict=True):
                parameter.copy_(processes.whole(mean))
            for mean, buffer in zip(self.averaged.buffers(), self.module.buffers(), strict=True):
                mean.copy_(buffer)  # running statistics are means already
        state: dict[str, Any] = {"step": step, "averaged": self.averaged.state_dict()}
        if not finished:
            state["module"] = _whole(self.module.state_dict(), processes)
            state["optimiser"] = _whole(self.optimiser.state_dict(), processes)
        if processes.rank == 0:
            with atomic(self.path) as partial:
                torch.save(state, partial)
        processes.meet()


def _whole(value: Any, processes: Processes) -> Any:
    if isinstance(value, dict):
        return {name: _whole(one, processes) for name, one in value.items()}
    return processes.whole(value) if isinstance(value, Tensor) else value


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
