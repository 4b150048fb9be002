"""How a question's passages are read: by its budget where a choice was trained, else as set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic import WIDTH, question, run, state, visual_tokens

from skipqa.config import BudgetConfig
from skipqa.errors import UserError
from skipqa.nn.reading_choice import WAYS, ReadingChoice, ReadingChoiceConfig
from skipqa.pipeline import Pipeline
from skipqa.stages.budget import AbstainBudgeter, FixedBudgeter, ReadingBudgeter, SetBudget
from skipqa.stages.budget_signals import NUM_SIGNALS
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Budget, Draft, Question, ReadAs

CONFIG = BudgetConfig(passages=6, easy=0.3)
BY_TEXT: tuple[ReadAs, ...] = ("text", "none")
QUESTION = "How is this drink brewed?"


def expecting(scores: Sequence[float], price: float = 0.0, width: int = WIDTH) -> ReadingChoice:
    """The same of every question, in the order of WAYS."""
    choice = ReadingChoice(ReadingChoiceConfig(width, width, NUM_SIGNALS, hidden=4))
    with torch.no_grad():
        choice.score.weight.zero_()
        choice.score.bias.copy_(torch.tensor(scores))
        choice.cost.copy_(torch.tensor([1.0, 0.8, 0.9, 0.4]))
        choice.price.fill_(price)
    return choice.requires_grad_(False)


def decided(
    choice: ReadingChoice,
    ways: Sequence[ReadAs] = WAYS,
    *,
    abstain: float = 0.9,
    fast_path: bool = True,
    own_documents: bool = False,
    asks: Question | None = None,
) -> tuple[Budget, StageRecord]:
    drafted = Draft("cat", 0.4, "", (("cat", -1.0),), abstain_prob=abstain)
    entering = state(
        question=asks or question(), low_res=visual_tokens(4, 3, seed=0), draft=drafted
    )
    budgeter = ReadingBudgeter(AbstainBudgeter(CONFIG, 16), choice, ways)
    stage = SetBudget(CONFIG, budgeter, own_documents)
    leaving, record = run(stage, entering.add(fast_path=fast_path))
    return leaving.budget, record


def test_the_best_way_at_its_price() -> None:
    scores = [0.62, 0.50, 0.60, 0.40]
    free, record = decided(expecting(scores))
    assert (free.read_as, free.passages) == ("text", 6)
    assert record.why.endswith(
        "passages read as text: expected score 0.62 (fused 0.50, fused+best 0.60, none 0.40)"
    )
    assert record.flops == 2 * 4 * (2 * WIDTH + NUM_SIGNALS + len(WAYS))
    assert decided(expecting(scores, 0.3))[0].read_as == "fused+best"
    assert decided(expecting(scores, 1.0))[0].read_as == "none"


@given(
    scores=st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4),
    abstain=st.floats(0, 1),
    fuses=st.booleans(),
    fast_path=st.booleans(),
    own_documents=st.booleans(),
)
def test_reading_nothing_closes_retrieval_under_the_same_rules(
    scores: list[float], abstain: float, fuses: bool, fast_path: bool, own_documents: bool
) -> None:
    """Own documents are never unread, and no question is without the fast path."""
    ways = WAYS if fuses else BY_TEXT
    budget, _ = decided(
        expecting(scores), ways, abstain=abstain, fast_path=fast_path, own_documents=own_documents
    )
    assert (budget.read_as == "none") is (budget.passages == 0)
    if not fast_path or own_documents:
        assert budget.passages == 6
    elif abstain < CONFIG.easy:
        assert budget.passages == 0
    assert budget.high_res is (budget.passages > 0)
    assert budget.level == ("EASY" if budget.passages == 0 else "MEDIUM")
    assert budget.read_as in ways


def test_what_the_gate_closes_is_not_asked_about() -> None:
    closed, record = decided(expecting([1.0, 1.0, 1.0, 0.0]), abstain=0.1)
    assert (closed.read_as, closed.passages, record.flops) == ("none", 0, 0)
    assert "read as" not in record.why


def test_a_question_of_several_steps_is_never_left_unread() -> None:
    asked = question("Which language is spoken where this breed comes from?", "language")
    steps = replace(asked, nested=(27, len(asked.text) - 1))
    assert steps.has_steps
    reads_nothing = expecting([0.1, 0.2, 0.4, 1.0])
    assert decided(reads_nothing, asks=asked)[0].passages == 0
    budget, record = decided(reads_nothing, asks=steps)
    assert (budget.read_as, budget.passages, budget.rounds) == ("fused+best", 6, 3)
    assert "none" not in record.why


def test_while_the_draft_is_not_known_retrieval_stays_open() -> None:
    """As looking ahead next to the drafter has it: else nothing would be looked at."""
    budgeter = ReadingBudgeter(AbstainBudgeter(CONFIG, 16), expecting([0.1, 0.2, 0.4, 1.0]), WAYS)
    entering = state(question=question(), low_res=visual_tokens(4, 3, seed=0))
    leaving, _ = run(SetBudget(CONFIG, budgeter), entering.add(fast_path=True))
    assert (leaving.budget.read_as, leaving.budget.passages) == ("fused+best", 6)


def test_other_signals_are_refused() -> None:
    other = ReadingChoice(ReadingChoiceConfig(WIDTH, WIDTH, NUM_SIGNALS + 1))
    with pytest.raises(UserError, match="signals"):
        ReadingBudgeter(FixedBudgeter(CONFIG, 16), other, WAYS)


def test_without_an_image_passages_are_read_as_set() -> None:
    low_res = visual_tokens(4, 3, seed=0)
    nothing = replace(low_res, meaning=low_res.meaning[:0], features=low_res.features[:0])
    budgeter = ReadingBudgeter(FixedBudgeter(CONFIG, 16), expecting([0, 0, 0, 1]), WAYS)
    draft = Draft("", 0.0, "no image")
    decision = budgeter(question(), nothing, draft, may_close=True)
    assert decision == FixedBudgeter(CONFIG, 16)(question(), nothing, draft, may_close=True)


def test_a_budget_without_a_choice_leaves_everything_as_set(
    pipeline: Pipeline, photo: Path
) -> None:
    """And one that chooses what is set anyway changes no bit of what follows."""
    as_set = pipeline.answer(photo, QUESTION, fast_path=False)
    assert as_set.state.budget.read_as is None
    chooses = pipeline.with_components(reading_choice=expecting([1, 0, 0, 0], width=384))
    chosen = chooses.answer(photo, QUESTION, fast_path=False)
    assert chosen.state.budget.read_as == "text"
    assert chosen.state.answer == as_set.state.answer
    assert chosen.state.prompt == as_set.state.prompt
    assert torch.equal(chosen.state.fused.tokens, as_set.state.fused.tokens)
    for name in ("look", "prune", "regions", "retrieve", "verify", "fuse", "decode"):
        one, other = chosen.trace[name], as_set.trace[name]
        assert (one.kept, one.dropped, one.flops) == (other.kept, other.dropped, other.flops)


@pytest.mark.parametrize("way", ["text", "none"])
def test_who_asks_for_a_way_gets_it(pipeline: Pipeline, photo: Path, way: str) -> None:
    """Whatever a choice would say."""
    other = [1.0, 0, 0, 0] if way == "none" else [0, 0, 0, 1.0]
    chooses = pipeline.with_components(reading_choice=expecting(other, width=384))
    entering = pipeline.run(State(photo, QUESTION, fast_path=True), stop="draft")
    asked = chooses.with_config(decode={"passages": way}).run(entering, start="budget")
    alone = pipeline.with_config(decode={"passages": way}).run(entering, start="budget")
    assert asked.budget == alone.budget
    assert (asked.prompt, asked.answer) == (alone.prompt, alone.answer)
    assert asked.answer.read == (() if way == "none" else alone.answer.read)


def test_nothing_is_retrieved_for_what_reads_nothing(pipeline: Pipeline, photo: Path) -> None:
    """As with K' = 0; without a fusion reader its tokens are never chosen."""
    unread = pipeline.with_components(reading_choice=expecting([0, 1, 1, 0.5], width=384))
    entering = pipeline.run(State(photo, QUESTION, fast_path=True), stop="draft")
    leaving = unread.run(entering, start="budget")
    closed = pipeline.with_config(budget={"passages": 0}).run(entering, start="budget")
    assert leaving.budget.read_as == "none"
    assert leaving.prompt == closed.prompt
    assert leaving.answer == closed.answer
    looked_up = unread.run(entering.add(fast_path=False), start="budget", stop="budget")
    assert (looked_up.budget.read_as, looked_up.budget.passages) == ("text", 6)
