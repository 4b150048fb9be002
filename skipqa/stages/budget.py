"""budget: how many tokens and passages the question may cost (DBC, fixed version)."""

from __future__ import annotations

from skipqa.config import BudgetConfig
from skipqa.trace import StageRecord
from skipqa.types import Budget, VisualTokens


def budget(tokens: VisualTokens, config: BudgetConfig, record: StageRecord) -> Budget:
    """The same (V', K') for every question: the paper's median budget by default."""
    allowed = Budget(min(config.tokens, len(tokens)), config.passages)
    record.why = f"V' = {allowed.tokens}, K' = {allowed.passages}, the same for every question"
    record.result = allowed
    return allowed
