import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.nn.relaxation import (
    cosine_schedule,
    gumbel_noise,
    gumbel_sigmoid,
    gumbel_softmax,
    gumbel_softmax_top_k,
    hard_top_k,
    linear_schedule,
    logistic_noise,
    relaxed_top_k,
    soft_round,
    straight_through_top_k,
)

# A relaxation can only tend to a choice that is clear: scores are distinct by this much.
GAP = 0.05


@st.composite
def distinct_scores(draw: st.DrawFn, most: int = 12) -> torch.Tensor:
    n = draw(st.integers(1, most))
    order = draw(st.permutations(range(n)))
    steps = draw(st.lists(st.floats(GAP, 2.0), min_size=n, max_size=n))
    return torch.tensor(steps, dtype=torch.float64).cumsum(0)[list(order)] - n / 2


@given(distinct_scores(), st.data())
def test_relaxed_top_k_tends_to_the_hard_one(scores: torch.Tensor, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(scores)))
    hard = hard_top_k(scores, k).double()
    errors = [
        float((relaxed_top_k(scores, k, t) - hard).abs().max()) for t in (1.0, 0.1, 0.01, 0.001)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < math.exp(-GAP / 2 / 0.001) * 2
    assert int(hard.sum()) == k


@given(distinct_scores(), st.data())
def test_gumbel_softmax_top_k_tends_to_the_hard_one(
    scores: torch.Tensor, data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, len(scores)))
    soft = gumbel_softmax_top_k(scores, k, 0.001)
    torch.testing.assert_close(soft, hard_top_k(scores, k).double(), rtol=0, atol=1e-9)
    torch.testing.assert_close(
        gumbel_softmax_top_k(scores, k, 1.0).sum(), torch.tensor(float(k)).double()
    )


@given(distinct_scores())
def test_all_and_nothing_are_exact_at_any_temperature(scores: torch.Tensor) -> None:
    assert relaxed_top_k(scores, len(scores), 1.0).tolist() == [1.0] * len(scores)
    assert relaxed_top_k(scores, 0, 1.0).tolist() == [0.0] * len(scores)


@given(distinct_scores())
def test_single_choices_tend_to_their_hard_forms(scores: torch.Tensor) -> None:
    one = torch.nn.functional.one_hot(scores.argmax(), len(scores)).double()
    torch.testing.assert_close(gumbel_softmax(scores, 1e-3), one, rtol=0, atol=1e-9)
    clear = scores[scores.abs() > GAP / 2]
    yes = (clear > 0).double()
    torch.testing.assert_close(gumbel_sigmoid(clear, 1e-4), yes, rtol=0, atol=1e-9)


def test_counts_may_differ_by_row() -> None:
    scores = torch.randn(3, 7, generator=torch.Generator().manual_seed(0)).double()
    counts = torch.tensor([0, 3, 7])
    assert hard_top_k(scores, counts).sum(-1).tolist() == [0, 3, 7]
    for relax in (relaxed_top_k, gumbel_softmax_top_k):
        soft = relax(scores, counts, 1e-4)
        torch.testing.assert_close(soft, hard_top_k(scores, counts).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("relax", [relaxed_top_k, gumbel_softmax_top_k])
def test_the_count_gets_a_gradient(relax) -> None:  # type: ignore[no-untyped-def]
    """Opening the budget opens gates, whatever the budget is: how DBC hears the task loss."""
    scores = torch.linspace(-2, 2, 9).double()
    for k in (0.0, 0.3, 1.0, 4.0, 8.5, 9.0):
        count = torch.tensor(k, dtype=torch.float64, requires_grad=True)
        relax(scores, count, 0.5).sum().backward() if k or relax is relaxed_top_k else None
        if count.grad is not None:
            assert count.grad >= 0
            assert count.grad > 0 or relax is gumbel_softmax_top_k


def test_straight_through_is_hard_forward_and_soft_backward() -> None:
    scores = torch.tensor([0.3, -1.0, 2.0], requires_grad=True)
    gates = straight_through_top_k(scores, 1, 0.5)
    assert gates.tolist() == [0.0, 0.0, 1.0]
    weights = torch.tensor([1.0, 2.0, 3.0])
    (gates * weights).sum().backward()
    relaxed = scores.detach().clone().requires_grad_()
    (relaxed_top_k(relaxed, 1, 0.5) * weights).sum().backward()
    torch.testing.assert_close(scores.grad, relaxed.grad)


@pytest.mark.parametrize("relax", [relaxed_top_k, straight_through_top_k])
def test_half_precision_keeps_its_count(relax) -> None:  # type: ignore[no-untyped-def]
    scores = torch.arange(16_000, 16_576, dtype=torch.int16).view(torch.bfloat16)  # all distinct
    gates = relax(scores, 301, 1e-5)
    assert gates.dtype == torch.bfloat16
    assert int((gates > 0.5).sum()) == 301


def test_ties_go_to_the_first() -> None:
    assert hard_top_k(torch.zeros(5), 2).tolist() == [True, True, False, False, False]


def test_noise_is_reproducible_and_has_the_right_law() -> None:
    like = torch.empty(200_000, dtype=torch.float64)

    def draw(seed: int) -> torch.Tensor:
        return gumbel_noise(like, torch.Generator().manual_seed(seed))

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert draw(1).mean() == pytest.approx(0.5772, abs=0.01)
    assert draw(1).var() == pytest.approx(math.pi**2 / 6, rel=0.02)
    logistic = logistic_noise(like, torch.Generator().manual_seed(3))
    assert logistic.var() == pytest.approx(math.pi**2 / 3, rel=0.02)
    # So a Gumbel-sigmoid at low temperature says yes with probability sigmoid(logit).
    chosen = gumbel_sigmoid(torch.full_like(like, 0.7), 1e-6, logistic)
    assert chosen.mean() == pytest.approx(1 / (1 + math.exp(-0.7)), abs=0.005)


@given(st.floats(-20, 20).filter(lambda x: abs(x % 1 - 0.5) > 0.05))
def test_soft_round_tends_to_rounding(x: float) -> None:
    got = float(soft_round(torch.tensor(x, dtype=torch.float64), 1e-3))
    assert got == pytest.approx(math.floor(x + 0.5), abs=1e-9)


@given(st.integers(0, 20_000))
def test_schedules_stay_between_their_ends(step: int) -> None:
    for schedule in (cosine_schedule, linear_schedule):
        assert 0.1 <= schedule(1.0, 0.1, step, 15_000) <= 1.0
        assert schedule(0.3, 0.6, 0, 100) == pytest.approx(0.3)
        assert schedule(0.3, 0.6, 100 + step, 100) == pytest.approx(0.6)
