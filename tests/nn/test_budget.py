import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.errors import UserError
from skipqa.nn import checkpoint
from skipqa.nn.budget import (
    Allocation,
    AveragedRouting,
    DifficultyBudget,
    DifficultyBudgetConfig,
    DiscreteBudgetConfig,
    build_budget,
    cost_loss,
)

A = DiscreteBudgetConfig(5, 4, hidden=8)
B = DifficultyBudgetConfig(5, 4)
CONFIGS = pytest.mark.parametrize("config", [A, B], ids="AB")


def controller(config, seed: int, scale: float = 1.0):  # type: ignore[no-untyped-def]
    torch.manual_seed(seed)
    model = build_budget(config).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return model


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5).double(), torch.randn(4).double()


@CONFIGS
@given(
    seed=st.integers(0, 10_000),
    num_tokens=st.integers(1, 600),
    num_passages=st.integers(0, 24),
    scale=st.sampled_from([0.1, 1.0, 100.0]),
)
def test_budget_is_never_exceeded(
    config: object, seed: int, num_tokens: int, num_passages: int, scale: float
) -> None:
    budget = controller(config, seed, scale).decide(*inputs(), num_tokens, num_passages)
    assert 1 <= budget.tokens <= num_tokens
    assert 0 <= budget.passages <= num_passages
    if config is A:
        assert budget.tokens <= A.tokens[1]
        assert budget.tokens >= min(A.tokens[0], num_tokens)
        assert budget.passages <= A.passages[1]
    else:
        assert budget.tokens <= math.ceil(B.rho_v[1] * num_tokens)
        # Whatever retrieval finds, verification keeps no more than ceil(rho_r K) of it.
        for found in range(num_passages + 1):
            assert budget.most_passages(found) <= math.ceil(B.rho_r[1] * found)


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=20),
    st.integers(0, 1000),
    st.integers(1, 600),
    st.integers(0, 24),
)
def test_monotone_in_difficulty(
    difficulties: list[float], seed: int, num_tokens: int, num_passages: int
) -> None:
    model = build_budget(B)
    assert isinstance(model, DifficultyBudget)
    generator = torch.Generator().manual_seed(seed)
    curves = [
        (low + (high - low) * torch.rand(B.grid, generator=generator)).sort().values.tolist()
        for low, high in (B.rho_v, B.rho_r)
    ]
    model.store_phi(*curves)
    ordered = torch.tensor(sorted(difficulties))
    counts = model.relaxed(model.allocate(ordered, num_tokens, num_passages), 0.0)
    assert (counts.tokens.diff() >= 0).all()
    assert (counts.passages.diff() >= 0).all()


def test_easy_questions_skip_retrieval() -> None:
    model = build_budget(B)
    assert isinstance(model, DifficultyBudget)
    d = torch.tensor([0.0, 0.1499, 0.15, 0.4, 0.7, 0.701, 1.0])
    counts = model.relaxed(model.allocate(d, 576, 24), 0.0)
    assert (counts.passages > 0).tolist() == [False, False, True, True, True, True, True]
    assert [model.level(float(x)) for x in (0.1, 0.15, 0.7, 0.71)] == [
        "EASY",
        "MEDIUM",
        "MEDIUM",
        "HARD",
    ]


def test_default_phi_reaches_both_ends() -> None:
    model = build_budget(B)
    assert isinstance(model, DifficultyBudget)
    counts = model.relaxed(model.allocate(torch.tensor([0.0, 1.0]), 100, 10), 0.0)
    assert counts.tokens.tolist() == [25, 90]  # ceil(0.9 * 100), not 91 by a float's error
    assert counts.passages.tolist() == [0, 9]


@given(st.lists(st.floats(-6, 6), min_size=2, max_size=8), st.integers(1, 600), st.integers(0, 24))
def test_decisions_are_monotone_in_difficulty(
    logits: list[float], num_tokens: int, num_passages: int
) -> None:
    """The whole hard form: W_d reads the question's first number, nothing else differs."""
    model = build_budget(B).double()
    assert isinstance(model, DifficultyBudget)
    with torch.no_grad():
        model.difficulty.weight.zero_()
        model.difficulty.bias.zero_()
        model.difficulty.weight[0, 0] = 1.0
    budgets = [
        model.decide(
            torch.zeros(5).double(), torch.tensor([x, 0, 0, 0]).double(), num_tokens, num_passages
        )
        for x in sorted(logits)
    ]
    for easier, harder in pairwise(budgets):
        assert easier.difficulty <= harder.difficulty  # type: ignore[operator]
        assert easier.tokens <= harder.tokens
        for found in range(num_passages + 1):
            assert easier.most_passages(found) <= harder.most_passages(found)
    assert all((b.passages == 0) == (b.level == "EASY" or num_passages == 0) for b in budgets)


@CONFIGS
@given(seed=st.integers(0, 10_000))
def test_relaxed_counts_tend_to_the_hard_ones(config: object, seed: int) -> None:
    model = controller(config, seed)
    v, q = inputs()
    allocation = model(v, q, 576, 16)
    hard = model.relaxed(allocation, 0.0)
    soft = model.relaxed(allocation, 1e-9)
    torch.testing.assert_close(soft.tokens, hard.tokens, atol=1e-6, rtol=0)
    torch.testing.assert_close(soft.passages, hard.passages, atol=1e-6, rtol=0)
    budget = model.decide(
        *(torch.manual_seed(seed), controller(config, seed), inputs())[-1], 576, 16
    )
    assert (budget.tokens, budget.most_passages(16)) == (int(hard.tokens), int(hard.passages))


@CONFIGS
def test_straight_through_counts(config: object) -> None:
    model = controller(config, 0)
    v, q = torch.randn(3, 5).double(), torch.randn(3, 4).double()
    allocation = model(v, q, 576, 16)
    counts = model.straight_through(allocation)
    assert torch.equal(counts.tokens.detach(), counts.tokens.detach().round())
    cost_loss(counts, 1 / 576, 1 / 16).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_averaged_routing_decides_slowly_and_teaches_the_live_controller() -> None:
    live = controller(A, 0)
    routing = AveragedRouting(live, decay=0.9)
    v, q = torch.randn(5).double(), torch.randn(4).double()
    before = routing(v, q, 576, 16)
    with torch.no_grad():
        for parameter in live.parameters():
            parameter.add_(1.0)
    assert torch.equal(routing(v, q, 576, 16).tokens, before.tokens)  # only the live one moved
    slow = [p.clone() for p in routing.averaged.parameters()]
    routing.update()
    for old, new, fast in zip(slow, routing.averaged.parameters(), live.parameters(), strict=True):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * fast.detach())
    routing(v, q, 576, 16).tokens.backward()
    assert all(p.grad is None for p in routing.averaged.parameters())
    assert next(live.parameters()).grad is not None


@CONFIGS
def test_half_precision_counts_are_whole_numbers_apart(config: object) -> None:
    model = controller(config, 0).bfloat16()
    v, q = torch.randn(200, 5).bfloat16(), torch.randn(200, 4).bfloat16()
    tokens = model.relaxed(model(v, q, 2880, 16), 0.0).tokens
    assert tokens.dtype == torch.float32
    assert torch.equal(tokens, tokens.round())


def test_phi_rejects_what_it_must() -> None:
    model = build_budget(B)
    assert isinstance(model, DifficultyBudget)
    good = [0.5] * 20
    model.store_phi(good, good)
    with pytest.raises(UserError, match="20"):
        model.store_phi(good[:5], good)
    with pytest.raises(UserError, match="decrease"):
        model.store_phi([0.6, *good[1:]], good)
    with pytest.raises(UserError, match="range"):
        model.store_phi(good, [0.1, *good[1:]])


def test_a_stored_phi_comes_back_from_its_file(tmp_path: Path) -> None:
    fitted, fresh = build_budget(B), build_budget(B)
    assert isinstance(fitted, DifficultyBudget)
    assert isinstance(fresh, DifficultyBudget)
    rho_v, rho_r = (
        torch.linspace(*limits, B.grid).square().tolist() for limits in (B.rho_v, B.rho_r)
    )
    with pytest.raises(UserError, match="range"):  # squares of shares fall below the least
        fitted.store_phi(rho_v, rho_r)
    rho_v = [max(x, B.rho_v[0]) for x in rho_v]
    rho_r = [max(x, B.rho_r[0]) for x in rho_r]
    fitted.store_phi(rho_v, rho_r)
    checkpoint.save(fitted, tmp_path / "budget.safetensors", preset="ablation-13b")
    checkpoint.load(fresh, tmp_path / "budget.safetensors", preset="ablation-13b")
    budgets = torch.linspace(100, 400, 301)  # between grid points, and beyond both ends
    for before, after in zip(fitted.phi(budgets), fresh.phi(budgets), strict=True):
        assert torch.equal(before, after)
    least, most = (float(x) for x in fresh.phi(torch.tensor(B.gflops))[0])
    assert (least, most) == pytest.approx((rho_v[0], rho_v[-1]))


def test_cost_loss() -> None:
    counts = Allocation(torch.tensor([64.0, 32.0]), torch.tensor([6.0, 2.0]))
    assert cost_loss(counts, 0.5, 1.0) == pytest.approx(0.1 * (24.0 + 4.0))
