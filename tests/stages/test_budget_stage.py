"""budget: never more than there is, the same without a controller, and its decision with one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic import WIDTH, question, run, state, visual_tokens

from skipqa.config import BudgetConfig
from skipqa.nn.budget import (
    BudgetController,
    DifficultyBudget,
    DifficultyBudgetConfig,
    DiscreteBudgetConfig,
    build_budget,
)
from skipqa.stages.budget import Budgeter, FixedBudgeter, SetBudget, TrainedBudgeter
from skipqa.trace import StageRecord
from skipqa.types import Budget, ConceptPrior

B = DifficultyBudgetConfig(WIDTH, WIDTH)


def decided(
    grid: int,
    config: BudgetConfig,
    controller: BudgetController | None = None,
    prior: ConceptPrior | None = None,
) -> tuple[Budget, StageRecord]:
    asked = replace(question(), concept_prior=prior)
    entering = state(question=asked, low_res=visual_tokens(grid, 3, seed=0))
    budgeter: Budgeter = FixedBudgeter(config, grid * grid)
    if controller is not None:
        budgeter = TrainedBudgeter(controller, config, grid * grid)
    leaving, record = run(SetBudget(config, budgeter), entering)
    return leaving.budget, record


@given(grid=st.integers(1, 8), tokens=st.integers(1, 100), passages=st.integers(0, 20))
def test_without_a_controller_every_question_gets_the_same(
    grid: int, tokens: int, passages: int
) -> None:
    allowed, record = decided(grid, BudgetConfig(tokens=tokens, passages=passages))
    assert (allowed.tokens, allowed.passages) == (min(tokens, grid * grid), passages)
    assert allowed.difficulty is None
    assert record.why == f"V' = {allowed.tokens}, K' = {passages}, the same for every question"
    assert record.flops == 0


@pytest.mark.parametrize(("tokens", "given"), [(3, 3), (64, 4)])
def test_never_more_tokens_than_there_are(tokens: int, given: int) -> None:
    allowed, _ = decided(2, BudgetConfig(tokens=tokens, passages=6))
    assert (allowed.tokens, allowed.passages) == (given, 6)


@given(
    variant=st.sampled_from("AB"),
    seed=st.integers(0, 500),
    grid=st.integers(1, 8),
    most=st.integers(0, 20),
)
def test_a_controller_never_exceeds_what_there_is(
    variant: str, seed: int, grid: int, most: int
) -> None:
    torch.manual_seed(seed)
    controller = build_budget(DiscreteBudgetConfig(WIDTH, WIDTH) if variant == "A" else B)
    for parameter in controller.parameters():
        torch.nn.init.normal_(parameter, std=3.0)
    allowed, record = decided(grid, BudgetConfig(max_passages=most), controller)
    assert 1 <= allowed.tokens <= grid * grid
    assert 0 <= allowed.passages <= most
    assert record.flops > 0
    again, _ = decided(grid, BudgetConfig(max_passages=most), controller)
    assert again == allowed


@given(st.floats(-6, 6))
def test_difficulty_decides_fractions_level_and_whether_to_retrieve(logit: float) -> None:
    controller = build_budget(B)
    assert isinstance(controller, DifficultyBudget)
    with torch.no_grad():
        controller.difficulty.weight.zero_()
        controller.difficulty.bias.fill_(logit)
    allowed, record = decided(4, BudgetConfig(max_passages=10), controller)
    d = allowed.difficulty
    assert d is not None
    assert f"difficulty {d:.2f}" in record.why
    assert allowed.tokens == math.ceil((0.25 + 0.65 * d) * 16 - 1e-4)
    if d < 0.15:  # SKIP-NR
        assert (allowed.passages, allowed.level) == (0, "EASY")
    else:
        assert allowed.passages == 10  # asked for; verification keeps the top ceil(rho_r K)
        assert allowed.level == ("HARD" if d > 0.7 else "MEDIUM")
        assert allowed.rho_r == pytest.approx(0.3 + 0.6 * d, abs=1e-6)
        assert allowed.most_passages(10) == math.ceil(allowed.rho_r * 10 - 1e-4)


@given(information=st.floats(0, 5), least=st.floats(0, 5), passages=st.integers(0, 3))
def test_high_resolution_is_for_questions_about_particular_things(
    information: float, least: float, passages: int
) -> None:
    config = BudgetConfig(passages=passages, min_information=least)
    allowed, _ = decided(4, config, prior=ConceptPrior(torch.ones(3), information))
    assert allowed.high_res == (passages > 0 and information >= least)
    untrained, _ = decided(4, config)
    assert untrained.high_res == (passages > 0)
