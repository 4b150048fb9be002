"""A difference between two networks: exact at full rank, the best possible below it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from skipqa.nn.low_rank import DOWN, UP, apply, difference, truncated

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
    return apply(base, difference(base, tuned, rank))["a.weight"] - tuned["a.weight"]


@given(seeds)
def test_exact_where_factors_do_not_pay(seed: int) -> None:
    base, tuned = pair(seed)
    found = difference(base, tuned, 12)
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
    found = difference(base, tuned, rank)
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
    found = difference(base, tuned, rank)
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
    cut, direct = truncated(difference(base, tuned, 7), rank), difference(base, tuned, rank)
    assert cut.keys() == direct.keys()
    for name in direct:
        torch.testing.assert_close(cut[name], direct[name])


def test_types_are_kept_and_the_base_is_left_alone() -> None:
    base, tuned = pair(0)
    half = {name: value.half() for name, value in base.items()}
    before = {name: value.clone() for name, value in half.items()}
    applied = apply(half, difference(half, tuned, 2))
    assert {value.dtype for value in applied.values()} == {torch.float16}
    assert all(torch.equal(half[name], before[name]) for name in half)
