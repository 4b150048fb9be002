"""One optimisation: its schedule, its batches, and that a kill changes nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from skipqa.training.loop import Diverged, Optimisation, batches, bucketed, fit, steps_for
from skipqa.training.run import Run

STEPS = 40


class Killed(Exception):
    pass


def task(
    run: Run, *, kill_at: int | None = None, seen: list[int] | None = None
) -> Callable[[], nn.Module]:
    """A module with dropout, a batch norm and a slower part, and a loss that may be killed."""

    def train() -> nn.Module:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
        x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
        batch_at = batches([torch.arange(64)], 10, run.seed)

        def loss(step: int) -> Tensor:
            if step == kill_at:
                raise Killed
            if seen is not None:
                seen.append(step)
            rows = batch_at(step)
            noise = 0.1 * torch.randn(len(rows), 1)
            return (module(x[rows] + noise) - x[rows].sum(1, keepdim=True)).square().mean()

        optimisation = Optimisation(STEPS, 1e-2, warmup=5)
        return fit("toy", module, loss, optimisation, run, [(module[0], 0.1)])

    return train


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(first: nn.Module, second: nn.Module) -> bool:
    a, b = weights(first), weights(second)
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kill_at", [1, 17, STEPS - 1])
def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path, kill_at: int) -> None:
    whole = task(Run(tmp_path / "whole"))()
    run, seen = Run(tmp_path / "killed", save_every_s=0), list[int]()
    with pytest.raises(Killed):
        task(run, kill_at=kill_at)()
    assert same(task(run, seen=seen)(), whole)
    assert seen == list(range(kill_at, STEPS))


def test_state_that_is_older_than_the_kill_gives_the_same_bits(tmp_path: Path) -> None:
    whole = task(Run(tmp_path / "whole"))()
    with pytest.raises(Killed):
        task(Run(tmp_path / "killed", save_every_s=0), kill_at=9)()
    with pytest.raises(Killed):  # goes on from 9 and saves nothing
        task(Run(tmp_path / "killed"), kill_at=30)()
    seen: list[int] = []
    assert same(task(Run(tmp_path / "killed"), seen=seen)(), whole)
    assert seen[0] == 9


def test_a_finished_run_is_read_not_repeated(tmp_path: Path) -> None:
    run, seen = Run(tmp_path), list[int]()
    first = task(run)()
    assert same(task(run, seen=seen)(), first)
    assert seen == []
    run.finish("toy", {})
    assert not run.state("toy").exists()


def test_a_finished_part_takes_no_others_state_with_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    names = ("reader", "reader/focus", "reader2", "reader2/focus")
    for name in names:
        run.state(name).parent.mkdir(parents=True, exist_ok=True)
        run.state(name).touch()
    run.finish("reader", {})
    assert [run.state(name).exists() for name in names] == [False, False, True, True]


def test_a_seed_decides(tmp_path: Path) -> None:
    first = task(Run(tmp_path / "a", seed=1))()
    torch.manual_seed(99)  # what was drawn before does not matter
    assert same(first, task(Run(tmp_path / "b", seed=1))())
    assert not same(first, task(Run(tmp_path / "c", seed=2))())


def test_divergence_is_one_line_and_leaves_no_bad_state(tmp_path: Path) -> None:
    module = nn.Linear(2, 1)

    def loss(step: int) -> Tensor:
        return module(torch.ones(1, 2)).sum() * (math.nan if step == 7 else 1.0)

    run = Run(tmp_path, save_every_s=0)
    with pytest.raises(Diverged, match=r"^toy diverged, its loss is nan at step 7: try") as error:
        fit("toy", module, loss, Optimisation(20, 1e-3), run)
    assert "\n" not in str(error.value)
    state = torch.load(run.state("toy"), weights_only=True)
    assert state["step"] == 7
    assert all(value.isfinite().all() for value in state["module"].values())


def test_schedule() -> None:
    phase = Optimisation(1_000, 2.0, warmup=10)
    rates = [phase.lr_at(step) for step in range(1_000)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == pytest.approx(2.0, rel=1e-3)
    assert rates[500] == pytest.approx(1.01, rel=1e-3)
    assert rates[-1] == pytest.approx(0.02, rel=1e-2)
    assert all(a >= b for a, b in pairwise(rates[10:]))


def test_the_average_forgets_the_start(tmp_path: Path) -> None:
    """A weight pulled at a constant rate: its average lags, but not by the first steps."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 0.0)
    loss = lambda step: -module.weight.sum()  # noqa: E731
    optimisation = Optimisation(200, 0.01, warmup=1, weight_decay=0)
    averaged = fit("toy", module, loss, optimisation, Run(tmp_path))
    live, mean = module.weight.item(), averaged.weight.item()
    assert live > 0.5
    assert 0.8 * live < mean < live


def test_slow_parts_are_slow(tmp_path: Path) -> None:
    module = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
    for part in module:
        nn.init.constant_(part.weight, 0.0)  # type: ignore[arg-type]
    loss = lambda step: -sum(p.sum() for p in module.parameters())  # noqa: E731
    optimisation = Optimisation(10, 0.01, warmup=1, weight_decay=0)
    fit("toy", module, loss, optimisation, Run(tmp_path), [(module[1], 0.1)])  # type: ignore[arg-type]
    fast, slow = (part.weight.item() for part in module)  # type: ignore[arg-type]
    assert slow == pytest.approx(0.1 * fast)


def test_losses_are_written_down(tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    run = Run(tmp_path, progress=lambda what, done, total, loss: heard.append((what, done, total)))
    task(run)()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    assert [line["step"] for line in lines] == [0, STEPS - 1]
    assert all(line["part"] == "toy" and line["loss"] > 0 for line in lines)
    assert heard == [("toy", 1, STEPS), ("toy", STEPS, STEPS)]


def test_tensorboard_hears_the_same(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    task(Run(tmp_path))()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    found = [(event.step, event.value) for event in events.Scalars("toy/loss")]
    assert found == [(line["step"], pytest.approx(line["loss"])) for line in lines]


Make = Callable[[Sequence[Tensor], int], Callable[[int], Tensor]]
LENGTHS = torch.randint(1, 50, (200,), generator=torch.Generator().manual_seed(3))
MAKERS: dict[str, Make] = {
    "batches": lambda groups, size: batches(groups, size, 5),
    "bucketed": lambda groups, size: bucketed(groups, LENGTHS, size, 5, most=10_000, near=3),
}


@pytest.mark.parametrize("name", MAKERS)
@given(st.integers(1, 90), st.integers(0, 30), st.integers(1, 20))
def test_an_epoch_has_every_index_once(name: str, first: int, second: int, size: int) -> None:
    groups = [torch.arange(first), torch.arange(100, 100 + second)]
    at = MAKERS[name](groups, size)
    everything = sorted(torch.cat(groups).tolist())
    step = 0
    orders = []
    for _ in range(2):
        found: list[int] = []
        while len(found) < len(everything):
            found += at(step).tolist()
            step += 1
        assert sorted(found) == everything
        orders.append(found)
    if len(everything) > 20:
        assert orders[0] != orders[1]
    assert at(0).tolist() == orders[0][: len(at(0))]  # a step's batch is always the same


def test_no_batch_of_one_is_left_over() -> None:
    at = batches([torch.arange(9)], 4, 0)
    assert [len(at(step)) for step in range(2)] == [4, 5]


def test_texts_of_like_length_are_together() -> None:
    at = bucketed([torch.arange(200)], LENGTHS, 10, 0, most=10_000)
    spread = [float(LENGTHS[at(step)].float().std()) for step in range(20)]
    assert sum(spread) / 20 < float(LENGTHS.float().std()) / 5


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=150),
    st.integers(1, 20),
    st.integers(60, 400),
    st.integers(0, 1_000),
)
def test_no_batch_is_too_long_when_padded(some: list[int], size: int, most: int, seed: int) -> None:
    """And still no row is left out of an epoch, nor comes twice, however many batches it takes."""
    lengths = torch.tensor(some)
    at = bucketed([torch.arange(len(some))], lengths, size, seed, most=most, near=3)
    step, first = 0, at(0).tolist()
    for _ in range(3):
        left = set(range(len(some)))
        while left:
            rows = at(step)
            assert 1 <= len(rows) <= size
            assert len(rows) * int(lengths[rows].max()) <= most
            assert left >= set(rows.tolist())
            left -= set(rows.tolist())
            step += 1
    assert at(0).tolist() == first  # a step's batch is always the same


def test_a_text_that_is_too_long_by_itself_comes_alone() -> None:
    at = bucketed([torch.arange(3)], torch.tensor([50, 500, 40]), 8, 0, most=100)
    assert sorted(sorted(at(step).tolist()) for step in range(2)) == [[0, 2], [1]]


def test_steps() -> None:
    assert steps_for(2.5, [torch.arange(10), torch.arange(30)], 8) == 12
    assert steps_for(0.1, [torch.arange(10)], 8) == 2
