"""The relaxed forms do what they are for: training through them makes the hard forms right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from skipqa.nn.budget import (
    AveragedRouting,
    DifficultyBudgetConfig,
    DiscreteBudgetConfig,
    build_budget,
    cost_loss,
)
from skipqa.nn.relaxation import cosine_schedule, gumbel_noise, hard_top_k, logistic_noise
from skipqa.nn.saliency import SaliencyConfig, build_saliency

STEPS = 250


def lookup_task(
    generator: torch.Generator, batch: int = 64, V: int = 16, D: int = 6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens are (key, value); the question is a key; the answer is the value of its token."""
    keys = F.normalize(torch.randn(batch, V, D, generator=generator), dim=-1)
    values = torch.randn(batch, V, D, generator=generator)
    target = torch.randint(V, (batch,), generator=generator)
    rows = torch.arange(batch)
    question = torch.cat((keys[rows, target], torch.zeros(batch, D)), dim=-1)
    return torch.cat((keys, values), dim=-1), question, values[rows, target, :1], target


@pytest.mark.parametrize("variant", ["A", "B"])
def test_pruning_learns_which_token_the_question_is_about(variant: str) -> None:
    generator = torch.Generator().manual_seed(2026)
    torch.manual_seed(2026)
    model = build_saliency(SaliencyConfig(12, variant, hidden=32))  # type: ignore[arg-type]
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    draw = logistic_noise if variant == "A" else gumbel_noise
    for step in range(STEPS):
        tokens, question, answer, _ = lookup_task(generator)
        logits = model(tokens, question)
        noise = draw(logits, generator)
        gates = model.gates(logits, 1, cosine_schedule(1.0, 0.1, step, STEPS), noise)
        read = (gates[..., None] * tokens).sum(1)[:, 6:7]
        loss = (read - answer).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    tokens, question, _, target = lookup_task(generator, batch=500)
    kept = hard_top_k(model(tokens, question), 2)
    found = kept[torch.arange(500), target].float().mean()
    assert found > 0.95  # 2 of 16 at random: 0.125


@pytest.mark.parametrize(
    "config", [DiscreteBudgetConfig(4, 4, hidden=16), DifficultyBudgetConfig(4, 4)], ids="AB"
)
def test_budget_learns_to_spend_where_it_is_needed(
    config: DiscreteBudgetConfig | DifficultyBudgetConfig,
) -> None:
    """Questions marked hard lose by every token under 90, easy ones need none."""
    generator = torch.Generator().manual_seed(2026)
    torch.manual_seed(2026)
    live = build_budget(config)
    routing = AveragedRouting(live, decay=0.9)
    # Slow enough for the average to follow: else the live controller overshoots and saturates.
    optimiser = torch.optim.Adam(live.parameters(), 5e-3)
    for _ in range(2 * STEPS):
        visual, question = torch.randn(2, 64, 4, generator=generator)
        needed = torch.where(question[:, 0] > 0, 90.0, 0.0)
        counts = routing(visual, question, 100, 16)
        task = (needed - counts.tokens).relu().mean() / 90
        loss = task + cost_loss(counts, 1 / 100, 1 / 16)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        routing.update()
    visual, question = torch.randn(2, 500, 4, generator=generator)
    decided = routing.averaged.relaxed(routing.averaged(visual, question, 100, 16), 0.0)
    clearly_hard, clearly_easy = question[:, 0] > 1, question[:, 0] < -1
    assert decided.tokens[clearly_hard].mean() > decided.tokens[clearly_easy].mean() + 25
