"""budget: how many tokens V', passages K' and rounds H the question may cost (DBC).

A trained controller decides by the mean low-resolution token, the question and what the draft said,
before the image is encoded again; it may close retrieval altogether (K' = 0, SKIP-NR) and leave
indexes out. Without one every question gets the same (V', K') and every index is searched, but a
drafter that may abstain closes retrieval for the easy ones. A trained choice says besides how what
is looked up will be read, and closes retrieval where nothing is worth reading. None of them closes
it where somebody's own documents are searched, as they cannot know what these answer, nor where the
fast path is off. Whether high resolution pays depends on the question alone: small things matter
where it is about one kind of thing, and seldom where it is about a scene. So does H: a further
round is for a question with words that stand for what a passage has to name (SKIP-Iter).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch

from skipqa.config import BudgetConfig
from skipqa.errors import UserError
from skipqa.nn import budget as network
from skipqa.nn import reading_choice
from skipqa.nn.budget import BudgetController
from skipqa.nn.drafter import ABSTAIN
from skipqa.nn.reading_choice import WAYS, ReadingChoice
from skipqa.stages.budget_signals import NUM_SIGNALS, UNKNOWN_DRAFT, signals
from skipqa.stages.budget_sources import DescribedIndexes
from skipqa.stages.fuse import ways_to_read
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Budget, Draft, Question, ReadAs, VisualTokens

MAX_ROUNDS = 3


class Decision(NamedTuple):
    budget: Budget
    flops: int
    why: str


class Budgeter(Protocol):
    def __call__(
        self, question: Question, low_res: VisualTokens, draft: Draft, may_close: bool
    ) -> Decision:
        """Retrieval stays open, and every index is searched, unless it `may_close`."""


class FixedBudgeter:
    """The same budget for every question; `num_tokens` is V at high resolution."""

    def __init__(self, config: BudgetConfig, num_tokens: int) -> None:
        tokens = config.kept_tokens(num_tokens)
        self.budget = Budget(tokens, config.passages, rho_r=config.rho_r)

    def __call__(
        self, question: Question, low_res: VisualTokens, draft: Draft, may_close: bool
    ) -> Decision:
        return Decision(self.budget, 0, "the same for every question")


class AbstainBudgeter:
    """The same budget for every question that is not easy: what the drafter gives for abstaining is
    the probability that the answer needs retrieval, and so the difficulty d. Below the threshold
    K' = 0. A draft that is not known yet leaves retrieval open."""

    def __init__(self, config: BudgetConfig, num_tokens: int) -> None:
        self.fixed, self.easy = FixedBudgeter(config, num_tokens), config.easy

    def __call__(
        self, question: Question, low_res: VisualTokens, draft: Draft, may_close: bool
    ) -> Decision:
        if not draft.candidates:
            return self.fixed(question, low_res, draft, may_close)
        difficulty = draft.abstain_prob
        budget = replace(self.fixed.budget, difficulty=difficulty)
        if may_close and difficulty < self.easy:
            budget = replace(budget, passages=0, rho_r=1.0, level="EASY")
        return Decision(budget, 0, f"difficulty {difficulty:.2f}")


class TrainedBudgeter:
    def __init__(
        self,
        controller: BudgetController,
        config: BudgetConfig,
        num_tokens: int,
        indexes: DescribedIndexes,
    ) -> None:
        if (read := controller.config.signals) not in (0, NUM_SIGNALS):
            raise UserError(f"this controller reads {read} signals, not {NUM_SIGNALS}: train again")
        self.controller, self.config, self.num_tokens = controller, config, num_tokens
        self.indexes = indexes

    def __call__(
        self, question: Question, low_res: VisualTokens, draft: Draft, may_close: bool
    ) -> Decision:
        visual, controller = low_res.meaning.mean(0), self.controller
        known = signals(question, low_res, draft)[: controller.config.signals]
        most = self.config.max_passages
        budget = controller.decide(
            *(visual, question.embedding, self.num_tokens, most, known), may_close=may_close
        )
        num_indexes = 0
        if budget.passages and may_close and controller.chooses_indexes:
            names, embeddings_ID = self.indexes.names, self.indexes.embeddings_ID
            useful = controller.useful(visual, question.embedding, known, embeddings_ID).tolist()
            skipped = tuple(name for name, use in zip(names, useful, strict=True) if not use)
            budget, num_indexes = replace(budget, skipped_indexes=skipped), len(names)
        spent = network.flops(controller.config, num_indexes)
        return Decision(budget, spent, self._why(budget))

    def _why(self, budget: Budget) -> str:
        why = "decided by the controller"
        if budget.difficulty is not None:
            why = f"difficulty {budget.difficulty:.2f}"
        if budget.expected_gain is not None:
            why = f"expected gain {budget.expected_gain:+.2f}"
            if budget.passages == 0:
                why = f"nothing to look up: {why}"
        if budget.skipped_indexes:
            searched = [n for n in self.indexes.names if n not in budget.skipped_indexes]
            why += f", looks in {', '.join(searched)}"
        return why


class ReadingBudgeter:
    """The budget of another, and how what it looks up is read: in the way of the highest expected
    score less its cost. Reading nothing saves looking up, too. It is never chosen for a question of
    several steps, as what further rounds find was no part of what the choice learned, nor while the
    draft is not known yet."""

    def __init__(self, budgeter: Budgeter, choice: ReadingChoice, ways: Sequence[ReadAs]) -> None:
        if (read := choice.config.signals) != NUM_SIGNALS:
            raise UserError(
                f"this reading choice reads {read} signals, not {NUM_SIGNALS}: train again"
            )
        self.budgeter, self.choice, self.ways = budgeter, choice, ways

    @torch.inference_mode()
    def __call__(
        self, question: Question, low_res: VisualTokens, draft: Draft, may_close: bool
    ) -> Decision:
        decision = self.budgeter(question, low_res, draft, may_close)
        budget, flops, why = decision
        if not len(low_res):  # no image, and the choice was trained with one
            return decision
        if budget.passages == 0:
            return Decision(replace(budget, read_as="none"), flops, why)
        known = low_res.meaning.mean(0), question.embedding, signals(question, low_res, draft)
        expected_R = self.choice(*known)
        may_close = may_close and draft is not UNKNOWN_DRAFT and not question.has_steps
        ways = [way for way in self.ways if may_close or way != "none"]
        way = self.choice.choose(expected_R, ways)
        flops += reading_choice.flops(self.choice.config)
        scores = dict(zip(WAYS, expected_R.tolist(), strict=True))
        others = ", ".join(f"{other} {scores[other]:.2f}" for other in ways if other != way)
        why += f", passages read as {way}: expected score {scores[way]:.2f}"
        why += f" ({others})" if others else ""
        budget = replace(budget, read_as=way)
        if way == "none":
            budget = replace(budget, passages=0, rho_r=1.0, level="EASY", skipped_indexes=())
        return Decision(budget, flops, why)


class SetBudget:
    def __init__(
        self, config: BudgetConfig, budgeter: Budgeter, own_documents: bool = False
    ) -> None:
        """Somebody's `own_documents` are always searched."""
        self.config, self.budgeter, self.own_documents = config, budgeter, own_documents

    def __call__(self, state: State, record: StageRecord) -> State:
        draft = state.draft if "draft" in state else UNKNOWN_DRAFT
        may_close = state.fast_path and not self.own_documents
        budget, record.flops, why = self.budgeter(state.question, state.low_res, draft, may_close)
        high_res = budget.passages > 0 and is_particular(state.question, self.config)
        budget = replace(budget, high_res=high_res, rounds=self._rounds(state.question, budget))
        kept = f" of which rho_r = {budget.rho_r:.2f}" if budget.rho_r < 1 else ""
        rounds = f", H = {budget.rounds}" if budget.rounds > 1 else ""
        record.why = f"V' = {budget.tokens}, K' = {budget.passages}{kept}{rounds}, {why}"
        return state.add(budget=budget)

    def _rounds(self, question: Question, budget: Budget) -> int:
        """As configured, else as many as the question may need."""
        if budget.passages == 0:
            return 1
        return self.config.rounds or (MAX_ROUNDS if question.has_steps else 1)


def is_particular(question: Question, config: BudgetConfig) -> bool:
    """Whether it is about one kind of thing, of which small ones matter."""
    prior = question.concept_prior
    return prior is None or prior.information >= config.min_information


def build(parts: Parts) -> SetBudget:
    budgeter, choice = _budgeter(parts), parts.components.reading_choice
    if choice is not None and parts.config.decode.passages == "auto":
        budgeter = ReadingBudgeter(budgeter, choice, ways_to_read(parts))
    return SetBudget(parts.config.budget, budgeter, parts.library.has_own_documents)


def _budgeter(parts: Parts) -> Budgeter:
    config, num_tokens = parts.config.budget, parts.config.encode.num_tokens
    if (controller := parts.components.budget) is not None:
        indexes = DescribedIndexes(parts.library, parts.backbone)
        return TrainedBudgeter(controller, config, num_tokens, indexes)
    if config.easy == 0 or not may_abstain(parts):
        return FixedBudgeter(config, num_tokens)
    return AbstainBudgeter(config, num_tokens)


def may_abstain(parts: Parts) -> bool:
    """Whether there is a drafter that knows when its answer would need retrieval."""
    drafter = parts.components.drafter
    return drafter is not None and ABSTAIN in drafter.config.answers
