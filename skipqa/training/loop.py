"""One optimisation: AdamW, warm-up and cosine, clipping, a running average, resumed after a kill.

Enters: a module and `loss(step)`, which draws the batch that belongs to that step, so that
nothing but the step number has to be remembered. Leaves: the module's running average, and in
the run's folder `metrics.jsonl` and, while unfinished, the state to go on from.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
Progress = Callable[[str, int, int, float], None]  # (what, step, of how many, loss)
SAVE_EVERY_S = 30.0
LOG_EVERY = 50


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps with one schedule: up over `warmup` steps, then along a cosine to 1 % of the peak."""

    steps: int
    rate: float
    warmup: int = 100

    def rate_at(self, step: int) -> float:
        rise = min(1.0, (step + 1) / max(1, self.warmup))
        fall = 0.5 * (1 + math.cos(math.pi * step / max(1, self.steps)))
        return self.rate * rise * (0.01 + 0.99 * fall)


@dataclass(frozen=True, slots=True)
class Run:
    """Where an optimisation keeps its things, and who hears of it."""

    folder: Path
    seed: int = 2026
    progress: Progress = lambda what, step, steps, loss: None
    save_every_s: float = SAVE_EVERY_S

    def record(self, **values: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


class Diverged(RuntimeError):
    """The loss stopped being a number."""


def fit(
    name: str,
    module: M,
    loss: Callable[[int], Tensor],
    phase: Phase,
    run: Run,
    *,
    slower: Sequence[tuple[nn.Module, float]] = (),
    weight_decay: float = 0.05,
    average: float = 0.995,
) -> M:
    """Train `module` in place; the running average comes back. `slower` parts have their own
    factor on the rate."""
    averaged = copy.deepcopy(module)
    optimiser = _optimiser(module, slower, weight_decay)
    state_path = run.folder / f"{name}.state.pt"
    first = _resume(state_path, module, averaged, optimiser)
    saved_at = time.monotonic()
    kept: list[Tensor] = list(averaged.parameters())
    following: list[Tensor] = list(module.parameters())
    module.train()
    for step in range(first, phase.steps):
        for group in optimiser.param_groups:
            group["lr"] = phase.rate_at(step) * group["factor"]
        with seeded(run.seed, step):
            value = loss(step)
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        with torch.no_grad():  # young averages forget fast, or they would remember the start
            torch._foreach_lerp_(kept, following, 1 - min(average, (step + 1) / (step + 10)))
        if step % LOG_EVERY == 0 or step == phase.steps - 1:
            if not math.isfinite(number := float(value.detach())):
                raise Diverged(f"{name}: the loss is {number} at step {step}")
            run.progress(name, step + 1, phase.steps, number)
            run.record(part=name, step=step, loss=number)
        if time.monotonic() - saved_at > run.save_every_s:
            _save(state_path, step + 1, module, averaged, optimiser)
            saved_at = time.monotonic()
    with torch.no_grad():
        for mean, buffer in zip(averaged.buffers(), module.buffers(), strict=True):
            mean.copy_(buffer)
    state_path.unlink(missing_ok=True)
    return averaged.eval()


def _optimiser(
    module: nn.Module, slower: Sequence[tuple[nn.Module, float]], weight_decay: float
) -> torch.optim.Optimizer:
    factors = {id(p): factor for part, factor in slower for p in part.parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            decay = weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((factors.get(id(parameter), 1.0), decay), []).append(parameter)
    return torch.optim.AdamW(
        [{"params": p, "factor": f, "weight_decay": d} for (f, d), p in groups.items()],
        betas=(0.9, 0.95),
        eps=1e-8,
        fused=True,
    )


def _resume(
    path: Path, module: nn.Module, averaged: nn.Module, optimiser: torch.optim.Optimizer
) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    module.load_state_dict(state["module"])
    averaged.load_state_dict(state["averaged"])
    optimiser.load_state_dict(state["optimiser"])
    return int(state["step"])


def _save(
    path: Path,
    step: int,
    module: nn.Module,
    averaged: nn.Module,
    optimiser: torch.optim.Optimizer,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    state = {
        "step": step,
        "module": module.state_dict(),
        "averaged": averaged.state_dict(),
        "optimiser": optimiser.state_dict(),
    }
    torch.save(state, partial)
    partial.replace(path)


@contextmanager
def seeded(seed: int, step: int) -> Iterator[None]:
    """Dropout and draws depend on the step alone: a resumed run takes the same path."""
    torch.manual_seed(seed * 1_000_003 + step)
    yield


def batches(groups: Sequence[Tensor], size: int, seed: int) -> Callable[[int], Tensor]:
    """`step -> indices`: the groups shuffled together anew each time round, none left out."""
    return _rounds(groups, seed, lambda order, _: list(order.split(size)))


def bucketed(
    groups: Sequence[Tensor], lengths: Tensor, size: int, seed: int, near: int = 32
) -> Callable[[int], Tensor]:
    """As `batches`, with texts of like length together; `near` batches are sorted at a time."""

    def cut(order: Tensor, generator: torch.Generator) -> list[Tensor]:
        stretches = [part[lengths[part].argsort(stable=True)] for part in order.split(near * size)]
        found = [batch for stretch in stretches for batch in stretch.split(size)]
        return [found[i] for i in torch.randperm(len(found), generator=generator)]

    return _rounds(groups, seed, cut)


def _rounds(
    groups: Sequence[Tensor],
    seed: int,
    cut: Callable[[Tensor, torch.Generator], list[Tensor]],
) -> Callable[[int], Tensor]:
    indices = torch.cat(list(groups))
    made: dict[int, list[Tensor]] = {}

    def round_of(turn: int) -> list[Tensor]:
        if turn not in made:
            made.clear()
            generator = torch.Generator().manual_seed(seed * 7_919 + turn)
            order = indices[torch.randperm(len(indices), generator=generator)]
            made[turn] = cut(order, generator)
        return made[turn]

    per_round = len(round_of(0))

    def at(step: int) -> Tensor:
        turn, place = divmod(step, per_round)
        return round_of(turn)[place]

    return at
