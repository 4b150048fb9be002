"""budget: how many tokens and passages the question may cost (DBC).

A trained controller decides by the mean token of the glance and the question, before the picture
is looked at closer; it may close retrieval altogether (K' = 0, SKIP-NR). Without one every
question gets the same (V', K'). Whether a closer look is worth it depends on the question alone:
small things matter where it is about one kind of thing, and seldom where it is about a scene.
"""

from __future__ import annotations

from dataclasses import replace

from skipqa.config import BudgetConfig
from skipqa.nn import budget as controller
from skipqa.nn.budget import BudgetController
from skipqa.trace import StageRecord
from skipqa.types import Budget, Question, VisualTokens


def budget(
    low_res: VisualTokens,
    question: Question,
    num_tokens: int,
    config: BudgetConfig,
    record: StageRecord,
    learned: BudgetController | None = None,
) -> Budget:
    """`num_tokens` is V, how many a closer look will have."""
    if learned is None:
        allowed = Budget(config.most_tokens(num_tokens), config.passages, rho_r=config.rho_r)
        why = "the same for every question"
    else:
        visual = low_res.meaning.mean(0)
        allowed = learned.decide(visual, question.embedding, num_tokens, config.max_passages)
        record.flops = controller.flops(learned.config)  # type: ignore[arg-type]
        why = "decided by the controller"
        if allowed.difficulty is not None:
            why = f"difficulty {allowed.difficulty:.2f}"
    expected = question.concept_prior
    particular = expected is None or expected.information >= config.min_information
    allowed = replace(allowed, high_res=allowed.passages > 0 and particular)
    prob = f" of which rho_r = {allowed.rho_r:.2f}" if allowed.rho_r < 1 else ""
    record.why = f"V' = {allowed.tokens}, K' = {allowed.passages}{prob}, {why}"
    record.result = allowed
    return allowed
