"""A difference between two networks: exact at full rank, the best possible below it."""

from __future__ import annotations

import copy

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from skipqa.nn.low_rank import (
    DOWN,
    UP,
    apply,
    delta,
    factor,
    factor_as,
    factored,
    interpolated,
    merge,
    truncated,
)

seeds = st.integers(0, 1_000)


def pair(
    seed: int, rows: int = 12, columns: int = 17
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def weights() -> dict[str, Tensor]:
        return {
            "a.weight": torch.randn(rows, columns, generator=generator),
            "a.bias": torch.randn(rows, generator=generator),
            "still": same,
        }

    same = torch.randn(3, generator=generator)
    return weights(), weights()


def error(base: dict[str, Tensor], tuned: dict[str, Tensor], rank: int) -> Tensor:
    return apply(base, delta(base, tuned, rank))["a.weight"] - tuned["a.weight"]


@given(seeds)
def test_exact_where_factors_do_not_pay(seed: int) -> None:
    base, tuned = pair(seed)
    found = delta(base, tuned, 12)
    assert found.keys() == {"a.weight", "a.bias"}  # what did not change is left out
    for name, value in apply(base, found).items():
        torch.testing.assert_close(value, tuned[name])


@given(seeds, st.integers(1, 6))
def test_exact_where_the_difference_has_that_rank(seed: int, rank: int) -> None:
    base, other = pair(seed)
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(12, rank, generator=generator)
    tuned = other | {
        "a.weight": base["a.weight"] + left @ torch.randn(rank, 17, generator=generator)
    }
    found = delta(base, tuned, rank)
    assert found["a.weight" + UP].shape == (rank, 12)
    assert found["a.weight" + DOWN].shape == (rank, 17)
    torch.testing.assert_close(error(base, tuned, rank), torch.zeros(12, 17), rtol=0, atol=1e-4)


@given(seeds, st.integers(1, 6), seeds)
def test_no_other_difference_of_that_rank_is_nearer(seed: int, rank: int, other: int) -> None:
    """Eckart and Young: neither a random one nor one beside the best."""
    base, tuned = pair(seed)
    best = error(base, tuned, rank).norm()
    wanted = tuned["a.weight"] - base["a.weight"]
    generator = torch.Generator().manual_seed(other)
    found = delta(base, tuned, rank)
    up, down = found["a.weight" + UP], found["a.weight" + DOWN]
    for size in (0.01, 0.3, 3.0):
        near_up = up + size * torch.randn(up.shape, generator=generator)
        near_down = down + size * torch.randn(down.shape, generator=generator)
        assert (near_up.T @ near_down - wanted).norm() >= best - 1e-4
    singular = torch.linalg.svdvals(wanted)
    torch.testing.assert_close(best, singular[rank:].norm(), rtol=1e-4, atol=1e-4)


@given(seeds, st.integers(1, 6))
def test_truncated_is_the_difference_at_that_rank(seed: int, rank: int) -> None:
    base, tuned = pair(seed)
    cut, direct = truncated(delta(base, tuned, 7), rank), delta(base, tuned, rank)
    assert cut.keys() == direct.keys()
    for name in direct:
        torch.testing.assert_close(cut[name], direct[name])


@given(seeds, st.integers(1, 1_000_000))
def test_filters_are_kept_whole_at_any_rank(seed: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    base, tuned = ({"w": torch.randn(6, 4, 3, 3, generator=generator)} for _ in range(2))
    tuned["w"] = tuned["w"].to(memory_format=torch.channels_last)
    found = delta(base, tuned, rank)
    assert found.keys() == {"w"}
    assert found["w"].is_contiguous()  # a file has no other order
    torch.testing.assert_close(apply(base, found), tuned)


def test_types_are_kept_and_the_base_is_left_alone() -> None:
    base, tuned = pair(0)
    half = {name: value.half() for name, value in base.items()}
    before = {name: value.clone() for name, value in half.items()}
    applied = apply(half, delta(half, tuned, 2))
    assert {value.dtype for value in applied.values()} == {torch.float16}
    assert all(torch.equal(half[name], before[name]) for name in half)


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 17), nn.Tanh(), nn.Linear(17, 2), nn.LayerNorm(2))


def weights(made: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in made.state_dict().items()}


@given(seeds, st.integers(1, 8))
def test_factored_it_is_the_nearest_of_that_rank(seed: int, rank: int) -> None:
    """The same that would be shipped; merged it is a plain network again."""
    base, made = weights(network(seed)), network(seed + 1)
    tuned = weights(made)
    expected = apply(base, delta(base, tuned, rank))
    x = torch.randn(3, 12)
    factor(made, base, rank)
    factored = made(x)
    merge(made)
    assert made.state_dict().keys() == base.keys()
    torch.testing.assert_close(dict(made.state_dict()), expected)
    torch.testing.assert_close(made(x), factored)


def test_what_is_trained_after_factoring_is_what_is_shipped() -> None:
    base, made = weights(network(0)), network(1)
    factor(made, base, 2)
    learns = {name for name, value in made.named_parameters() if value.requires_grad}
    assert not any(name.endswith("original") for name in learns)
    assert learns >= {"0.bias", "3.weight"}  # vectors whole
    before = made(torch.ones(1, 12)).detach()
    optimiser = torch.optim.SGD([p for p in made.parameters() if p.requires_grad], lr=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        made(torch.randn(8, 12)).square().sum().backward()
        optimiser.step()
    trained = made(torch.ones(1, 12)).detach()
    assert not torch.allclose(trained, before)
    copied = copy.deepcopy(made)  # as a running average is
    merge(copied)
    torch.testing.assert_close(copied(torch.ones(1, 12)), trained)
    found = delta(base, copied.state_dict(), 2)
    assert found["0.weight" + UP].shape == (2, 17)
    torch.testing.assert_close(apply(base, found), weights(copied), rtol=1e-4, atol=1e-5)


@given(seeds, st.integers(1, 8))
def test_a_shipped_difference_goes_on_learning_at_its_own_ranks(seed: int, rank: int) -> None:
    """From the file to the same file: nothing is lost, and each matrix keeps its rank."""
    base, tuned = weights(network(seed)), weights(network(seed + 1))
    shipped = delta(base, tuned, rank)
    made = network(seed)
    made.load_state_dict(apply(base, shipped))
    before = made(torch.ones(1, 12)).detach()
    factor_as(made, base, shipped)
    torch.testing.assert_close(made(torch.ones(1, 12)), before)
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.1)
    found = factored(copy.deepcopy(made), base)
    assert found.keys() - shipped.keys() == {"3.weight", "3.bias"}  # which had not changed
    assert all(found[name].shape == value.shape for name, value in shipped.items())
    merge(made)
    torch.testing.assert_close(apply(base, found), weights(made), rtol=1e-4, atol=1e-4)


@given(seeds, st.integers(1, 8), st.floats(0, 1))
def test_interpolated_it_is_the_nearest_of_that_rank(seed: int, rank: int, fraction: float) -> None:
    base, first, second = (weights(network(seed + n)) for n in range(3))
    one, other = delta(base, first, rank), delta(base, second, rank)
    found = interpolated(one, other, fraction)
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in one.items()
    }
    ends = apply(base, one), apply(base, other)
    between = {name: value.lerp(ends[1][name], fraction) for name, value in ends[0].items()}
    nearest = apply(base, delta(base, between, rank))
    torch.testing.assert_close(apply(base, found), nearest, rtol=1e-3, atol=1e-4)
    for end, part in ((ends[0], 0.0), (ends[1], 1.0)):
        same = apply(base, interpolated(one, other, part))
        torch.testing.assert_close(same, end, rtol=1e-3, atol=1e-4)


@given(seeds, st.floats(0, 1))
def test_what_only_one_of_them_changed_is_interpolated_too(seed: int, fraction: float) -> None:
    base, tuned = weights(network(seed)), weights(network(seed + 1))
    every = delta(base, tuned, 2)
    few = {name: value for name, value in every.items() if name != "0.bias"}
    bias = every["0.bias"]
    for one, other, part in ((few, every, fraction), (every, few, 1 - fraction)):
        found = interpolated(one, other, fraction)
        assert found.keys() == every.keys()
        torch.testing.assert_close(found["0.bias"], part * bias)
