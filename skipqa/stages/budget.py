"""budget: how many tokens V' and passages K' the question may cost (DBC).

A trained controller decides by the mean low-resolution token and the question, before the image
is encoded again; it may close retrieval altogether (K' = 0, SKIP-NR). Untrained, every question
gets the same (V', K'). Whether high resolution pays depends on the question alone: small things
matter where it is about one kind of thing, and seldom where it is about a scene.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

from skipqa.config import BudgetConfig
from skipqa.nn import budget as network
from skipqa.nn.budget import BudgetController
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Budget, Question, VisualTokens


class Decision(NamedTuple):
    budget: Budget
    flops: int
    why: str


class Budgeter(Protocol):
    def __call__(self, question: Question, low_res: VisualTokens) -> Decision: ...


class FixedBudgeter:
    """The same budget for every question; `num_tokens` is V at high resolution."""

    def __init__(self, config: BudgetConfig, num_tokens: int) -> None:
        tokens = config.kept_tokens(num_tokens)
        self.budget = Budget(tokens, config.passages, rho_r=config.rho_r)

    def __call__(self, question: Question, low_res: VisualTokens) -> Decision:
        return Decision(self.budget, 0, "the same for every question")


class TrainedBudgeter:
    def __init__(self, controller: BudgetController, config: BudgetConfig, num_tokens: int) -> None:
        self.controller, self.config, self.num_tokens = controller, config, num_tokens

    def __call__(self, question: Question, low_res: VisualTokens) -> Decision:
        visual, most = low_res.meaning.mean(0), self.config.max_passages
        budget = self.controller.decide(visual, question.embedding, self.num_tokens, most)
        spent = network.flops(self.controller.config)  # type: ignore[arg-type]
        why = "decided by the controller"
        if budget.difficulty is not None:
            why = f"difficulty {budget.difficulty:.2f}"
        return Decision(budget, spent, why)


class SetBudget:
    def __init__(self, config: BudgetConfig, budgeter: Budgeter) -> None:
        self.config, self.budgeter = config, budgeter

    def __call__(self, state: State, record: StageRecord) -> State:
        budget, record.flops, why = self.budgeter(state.question, state.low_res)
        prior = state.question.concept_prior
        particular = prior is None or prior.information >= self.config.min_information
        budget = replace(budget, high_res=budget.passages > 0 and particular)
        kept = f" of which rho_r = {budget.rho_r:.2f}" if budget.rho_r < 1 else ""
        record.why = f"V' = {budget.tokens}, K' = {budget.passages}{kept}, {why}"
        return state.add(budget=budget)


def build(parts: Parts) -> SetBudget:
    config, num_tokens = parts.config.budget, parts.config.encode.num_tokens
    controller = parts.components.budget
    if controller is None:
        return SetBudget(config, FixedBudgeter(config, num_tokens))
    return SetBudget(config, TrainedBudgeter(controller, config, num_tokens))
