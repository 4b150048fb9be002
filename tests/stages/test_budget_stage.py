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
from skipqa.errors import UserError
from skipqa.nn.budget import (
    BudgetController,
    DifficultyBudget,
    DifficultyBudgetConfig,
    DiscreteBudget,
    DiscreteBudgetConfig,
    build_budget,
)
from skipqa.stages.budget import (
    AbstainBudgeter,
    Budgeter,
    FixedBudgeter,
    SetBudget,
    TrainedBudgeter,
)
from skipqa.stages.budget_signals import NUM_SIGNALS
from skipqa.stages.budget_sources import DescribedIndexes
from skipqa.trace import StageRecord
from skipqa.types import Budget, ConceptPrior, Draft

B = DifficultyBudgetConfig(WIDTH, WIDTH)
GATED = DiscreteBudgetConfig(
    WIDTH, WIDTH, passages=(2, 16), signals=NUM_SIGNALS, gate=True, index_width=WIDTH
)


class Described(DescribedIndexes):
    """Three indexes, each along an axis of its own."""

    names = ("facts", "letters", "maps")
    embeddings_ID = torch.eye(WIDTH)[:3]

    def __init__(self) -> None:
        pass


def decided(
    grid: int,
    config: BudgetConfig,
    controller: BudgetController | None = None,
    prior: ConceptPrior | None = None,
    own_documents: bool = False,
    **more: Draft,
) -> tuple[Budget, StageRecord]:
    asked = replace(question(), concept_prior=prior)
    entering = state(question=asked, low_res=visual_tokens(grid, 3, seed=0), **more)
    entering = entering.add(fast_path=True)
    budgeter: Budgeter = FixedBudgeter(config, grid * grid)
    if controller is not None:
        budgeter = TrainedBudgeter(controller, config, grid * grid, Described())
    leaving, record = run(SetBudget(config, budgeter, own_documents), entering)
    return leaving.budget, record


def gated(gain_per_confidence: float) -> DiscreteBudget:
    """Expects a gain of so much times what the draft lacks in confidence."""
    torch.manual_seed(0)
    controller = DiscreteBudget(GATED)
    assert controller.gate is not None
    with torch.no_grad():
        for parameter in controller.gate.parameters():
            parameter.zero_()
        controller.gate.trunk[0].weight[0, 2 * WIDTH] = 1.0  # the draft's confidence
        controller.gate.trunk[0].bias[0] = 10.0  # where GELU is linear
        controller.gate.gain.weight[0, 0] = -gain_per_confidence
        controller.gate.gain.bias[0] = gain_per_confidence * 11.0
        controller.gate.threshold.fill_(0.05)
    return controller


def of_difficulty(logit: float) -> DifficultyBudget:
    """Finds every question as difficult as that."""
    controller = build_budget(B)
    assert isinstance(controller, DifficultyBudget)
    with torch.no_grad():
        controller.difficulty.weight.zero_()
        controller.difficulty.bias.fill_(logit)
    return controller


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
    controller = of_difficulty(logit)
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


def test_a_confident_draft_is_not_looked_up() -> None:
    config, controller = BudgetConfig(), gated(0.5)
    closed, record = decided(4, config, controller, draft=Draft("a", 0.98, ""))
    assert (closed.passages, closed.high_res) == (0, False)
    assert closed.expected_gain == pytest.approx(0.01, abs=1e-4)
    assert record.why.endswith("nothing to look up: expected gain +0.01")
    opened, record = decided(4, config, controller, draft=Draft("a", 0.2, ""))
    assert opened.passages >= 2
    assert opened.high_res
    assert record.why.endswith("expected gain +0.40")
    assert opened.skipped_indexes == ()


def test_among_documents_of_ones_own_everything_is_looked_up() -> None:
    """However certain the controller is, and in every index."""
    controller = gated(0.5)
    assert controller.sources is not None
    controller.sources.threshold.fill_(0.99)
    certain = Draft("a", 0.98, "")
    allowed, record = decided(4, BudgetConfig(), controller, own_documents=True, draft=certain)
    assert allowed.passages >= 2
    assert allowed.high_res
    assert allowed.skipped_indexes == ()
    assert record.why.endswith("expected gain +0.01")


@given(st.floats(-6, 6))
def test_an_opened_difficulty_keeps_its_tokens(logit: float) -> None:
    controller = of_difficulty(logit)
    config = BudgetConfig(max_passages=10)
    allowed, _ = decided(4, config, controller)
    opened, _ = decided(4, config, controller, own_documents=True)
    assert opened.passages == 10
    assert (opened.tokens, opened.difficulty) == (allowed.tokens, allowed.difficulty)


def test_without_a_draft_its_signals_are_0() -> None:
    """As where the drafter runs at the same time."""
    early, _ = decided(4, BudgetConfig(), gated(0.5))
    assert early.expected_gain == pytest.approx(0.5, abs=1e-4)


def test_indexes_that_seem_useless_are_skipped() -> None:
    controller = gated(0.5)
    assert controller.sources is not None
    with torch.no_grad():
        for parameter in controller.sources.parameters():
            parameter.zero_()
        controller.sources.prior.weight[0, :3] = torch.tensor([2.0, -5.0, 1.0])
        controller.sources.threshold.fill_(0.3)
    allowed, record = decided(4, BudgetConfig(), controller)
    assert allowed.skipped_indexes == ("letters",)
    assert record.why.endswith("looks in facts, maps")
    closed, record = decided(4, BudgetConfig(), controller, draft=Draft("a", 1.0, ""))
    assert closed.skipped_indexes == ()
    assert "looks in" not in record.why


def test_other_signals_are_refused() -> None:
    controller = build_budget(DiscreteBudgetConfig(WIDTH, WIDTH, signals=NUM_SIGNALS + 1))
    with pytest.raises(UserError, match="signals"):
        TrainedBudgeter(controller, BudgetConfig(), 16, Described())


@given(
    abstain=st.floats(0, 1),
    easy=st.floats(0.01, 1),
    fast_path=st.booleans(),
    own_documents=st.booleans(),
)
def test_an_easy_question_is_not_looked_up(
    abstain: float, easy: float, fast_path: bool, own_documents: bool
) -> None:
    """Unless the fast path is off, or there are documents of one's own to read."""
    config = BudgetConfig(easy=easy, passages=6)
    stage = SetBudget(config, AbstainBudgeter(config, 16), own_documents)
    drafted = Draft("cat", 0.4, "", (("cat", -1.0),), abstain_prob=abstain)
    entering = state(question=question(), low_res=visual_tokens(4, 3, seed=0), draft=drafted)
    leaving, record = run(stage, entering.add(fast_path=fast_path))
    closed = abstain < easy and fast_path and not own_documents
    assert leaving.budget.passages == (0 if closed else 6)
    assert leaving.budget.high_res is not closed
    assert leaving.budget.level == ("EASY" if closed else "MEDIUM")
    assert leaving.budget.difficulty == abstain
    assert leaving.budget.tokens == config.kept_tokens(16)
    assert f"difficulty {abstain:.2f}" in record.why


def test_a_draft_that_is_not_known_yet_leaves_retrieval_open() -> None:
    config = BudgetConfig(easy=0.5)
    stage = SetBudget(config, AbstainBudgeter(config, 16))
    entering = state(question=question(), low_res=visual_tokens(4, 3, seed=0))
    assert run(stage, entering.add(fast_path=True))[0].budget.passages == config.passages
