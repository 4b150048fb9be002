"""A pipeline with V', K' or both fixed, whatever a trained controller would decide."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from skipqa.nn.budget import NO_SIGNALS, BudgetController
from skipqa.pipeline import Pipeline
from skipqa.types import Budget


class FixedBudget(BudgetController):
    """A trained controller that is overruled: its V', its K' or both are fixed. With a fixed K',
    neither its gate nor its choice of indexes applies."""

    def __init__(
        self, controller: BudgetController, tokens: int | None, passages: int | None
    ) -> None:
        super().__init__()
        self.config = controller.config
        self.controller = controller
        self.tokens, self.passages = tokens, passages

    @property
    def chooses_indexes(self) -> bool:
        return self.passages is None and self.controller.chooses_indexes

    def useful(
        self, visual: Tensor, question: Tensor, signals: Tensor, indexes_ID: Tensor
    ) -> Tensor:
        return self.controller.useful(visual, question, signals, indexes_ID)

    def decide(
        self,
        visual: Tensor,
        question: Tensor,
        num_tokens: int,
        num_passages: int,
        signals: Tensor = NO_SIGNALS,
        *,
        may_close: bool = True,
    ) -> Budget:
        decided = self.controller.decide(
            visual, question, num_tokens, num_passages, signals, may_close=may_close
        )
        tokens = decided.tokens if self.tokens is None else min(self.tokens, num_tokens)
        if self.passages is None:
            return dataclasses.replace(decided, tokens=tokens)
        return dataclasses.replace(
            decided, tokens=tokens, passages=self.passages, rho_r=1.0, expected_gain=None
        )


def with_budget(base: Pipeline, tokens: int | None = None, passages: int | None = None) -> Pipeline:
    """A fixed K' is final: no question is too easy for it, verification's own fraction rho_r does
    not apply on top, and all that it allows is read as `decode.passages` says."""
    fixed: dict[str, Any] = {} if tokens is None else {"tokens": tokens}
    fixed |= {} if passages is None else {"passages": passages, "rho_r": 1.0, "easy": 0.0}
    system = base.with_config(budget=fixed)
    if passages is not None:
        system = system.with_components(reading_choice=None)
    if (controller := base.components.budget) is None:
        return system
    return system.with_components(budget=FixedBudget(controller, tokens, passages))
