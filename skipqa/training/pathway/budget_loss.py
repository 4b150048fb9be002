"""The losses of budget controllers.

Enters: what every budget is worth to each question, other targets, a controller. Leaves: a loss per
step, on all questions at once: a held-out split is small. It does not know how controllers are
compared.

Shape letters: m questions with other targets, I indexes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.nn.budget import DifficultyBudget, DiscreteBudget, joined
from skipqa.nn.relaxation import linear_schedule
from skipqa.stages.budget_signals import OF_DRAFT
from skipqa.training.loop import Loss
from skipqa.training.pathway.answering import Answered
from skipqa.training.pathway.budget_grid import PASSAGES, BudgetGrid
from skipqa.training.pathway.budget_settings import BudgetTraining
from skipqa.training.pathway.budget_targets import TYPES, Targets

WIDTH = (2.0, 0.25)  # of the neighbourhood of a budget, in grid points, first and last


class GatedTraining(nn.Module):
    """Variant A, and heads for targets that answering never predicts."""

    def __init__(self, controller: DiscreteBudget) -> None:
        super().__init__()
        self.controller = controller
        hidden = controller.config.hidden
        self.reader_gain, self.types = nn.Linear(hidden, 1), nn.Linear(hidden, len(TYPES))


def gated_loss(
    model: GatedTraining,
    grid: BudgetGrid,
    targets: Targets,
    settings: BudgetTraining,
    num_tokens: int,
) -> Loss:
    """Eq. 9 for V' and K', given that the question is looked up; the squared error of the gain; and
    what the other targets add."""
    controller, looked_up = model.controller, grid.looked_up()
    least, most = cost_range(grid)

    def loss(step: int) -> Tensor:
        inputs = dropped(grid, settings)
        chosen = controller(*inputs[:2], num_tokens, PASSAGES[-1], inputs[2])
        width = linear_schedule(*WIDTH, step, settings.steps)
        value, giga = looked_up.around(chosen.tokens, chosen.passages, width)
        paid = settings.price * ((giga - least) / (most - least)).mean() - value.mean()
        return paid + F.mse_loss(chosen.gain, grid.gain) + _auxiliary(model, targets, settings)

    return loss


def _auxiliary(model: GatedTraining, targets: Targets, settings: BudgetTraining) -> Tensor:
    gate, sources = model.controller.gate, model.controller.sources
    assert gate is not None
    assert sources is not None
    known = joined(*dropped(targets, settings))
    hidden = gate.trunk(known)
    measured, typed = ~targets.reader_gain.isnan(), targets.type >= 0
    useful = ~targets.useful[:, 0].isnan()
    more = known.new_zeros(())
    if measured.any():
        predicted = model.reader_gain(hidden[measured])[:, 0]
        more = more + settings.auxiliary * F.mse_loss(predicted, targets.reader_gain[measured])
    if typed.any():
        logits = model.types(hidden[typed])
        more = more + settings.auxiliary * F.cross_entropy(logits, targets.type[typed])
    if useful.any():
        logits_mI = sources(known[useful], targets.indexes_ID)
        more = more + F.binary_cross_entropy_with_logits(logits_mI, targets.useful[useful])
    return more


def difficulty_loss(
    controller: DifficultyBudget, grid: BudgetGrid, settings: BudgetTraining
) -> Loss:
    """Cross-entropy of whether any passages help."""
    needs_passages = needs_retrieval(grid)

    def loss(step: int) -> Tensor:
        d = controller.estimate(*dropped(grid, settings)).clamp(1e-6, 1 - 1e-6)
        return F.binary_cross_entropy(d, needs_passages)

    return loss


def needs_retrieval(grid: BudgetGrid) -> Tensor:
    """[n] 1 where some budget with passages is better than none."""
    return (grid.value.amax((1, 2)) > grid.value[:, :, 0].amax(1)).float()


@torch.inference_mode()
def error_on(model: nn.Module, grid: BudgetGrid) -> Tensor:
    """[n]: of what decides whether a question is looked up, on questions that were not seen."""
    if isinstance(model, GatedTraining):
        assert model.controller.gate is not None
        expected = model.controller.gate(joined(grid.visual, grid.question, grid.signals))
        return (expected - grid.gain).square()
    assert isinstance(model, DifficultyBudget)
    d = model.estimate(grid.visual, grid.question, grid.signals).clamp(1e-6, 1 - 1e-6)
    return F.binary_cross_entropy(d, needs_retrieval(grid), reduction="none")


def cost_range(grid: BudgetGrid) -> tuple[float, float]:
    """The mean cost of the cheapest budget, and of the dearest."""
    giga = grid.giga.mean(0)
    return float(giga.min()), float(giga.max())


def dropped(inputs: Answered | Targets, settings: BudgetTraining) -> tuple[Tensor, Tensor, Tensor]:
    """With dropout, and now and then without a draft."""
    has_draft = torch.rand(len(inputs), 1) >= settings.no_draft
    of_draft, others = inputs.signals[:, :OF_DRAFT], inputs.signals[:, OF_DRAFT:]
    return (
        F.dropout(inputs.visual, settings.dropout),
        F.dropout(inputs.question, settings.dropout),
        torch.cat((of_draft * has_draft, others), dim=1),
    )
