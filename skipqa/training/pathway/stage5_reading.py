"""Stage V, after the controller: how the passages of a question are read.

Enters: records. Leaves: a head that expects the score of each way to read, with the measured cost
of each and the price that the folds chose, and how choosing compares with every fixed way.

Each held-out question is answered in all ways (`reading_grid.py`). As for the controller, all are
trained on and all are judged, by heads of five folds, of which none is asked about a photo that it
saw. The folds choose the number of steps and the price: the one of the highest score at no more
FLOPs than the way that is set. The price of a fold is chosen by the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.nn import reading_choice as network
from skipqa.nn.reading_choice import WAYS, ReadingChoice, ReadingChoiceConfig
from skipqa.stages.budget_signals import NUM_SIGNALS
from skipqa.stages.fuse import way_as_set, ways_to_read
from skipqa.training.loop import Loss, Optimisation, fit
from skipqa.training.pathway.answering import Answered
from skipqa.training.pathway.budget_loss import dropped
from skipqa.training.pathway.budget_settings import BudgetTraining
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.folds import CrossFitted, by_photo, cross_fitted, drawn
from skipqa.training.pathway.reading_grid import behind_gate, evaluate_ways, looked_up
from skipqa.training.pathway.reading_quality import (
    Expected,
    choice_ships,
    compare_ways,
    price_curve,
)
from skipqa.training.pathway.stage import PathwayPart
from skipqa.training.stage import Metrics
from skipqa.types import ReadAs


@dataclass(frozen=True, slots=True)
class ReadingInputs:
    answered: Answered  # `value` and `giga` are [n, R]
    looked_up: Tensor  # [n] bool, by the budget
    fold: Tensor  # [n]

    @property
    def judged(self) -> Answered:
        """As answering has it. What is learned from includes the questions that the budget does not
        look up: where it has to, it looks them up, too."""
        return behind_gate(self.answered, self.looked_up)

    def without(self, fold: int) -> ReadingInputs:
        some = (self.fold != fold).nonzero()[:, 0].tolist()
        return ReadingInputs(self.answered.only(some), self.looked_up[some], self.fold[some])


class CrossValidated(nn.Module):
    """A head of all questions, and one of each fold, which saw the other folds alone."""

    def __init__(
        self, found: CrossFitted[ReadingChoice], data: ReadingInputs, today: ReadAs
    ) -> None:
        super().__init__()
        self.choice, self.folds, self.errors = found
        self.expected = _of_unseen(self.folds, data)
        self.curve = price_curve(self.expected, data.judged, today)
        self.choice.price.fill_(self.curve.best())
        for fold, model in enumerate(self.folds):
            others = (data.fold != fold).nonzero()[:, 0].tolist()
            curve = price_curve(self.expected.only(others), data.judged.only(others), today)
            model.price.fill_(curve.best())

    def prices(self, fold_n: Tensor) -> Tensor:
        return torch.stack([model.price for model in self.folds])[fold_n]


class ReadingPart(PathwayPart[BudgetTraining, ReadingInputs, nn.Module]):
    name = "reading_choice"

    def run(self, context: TrainingContext, settings: BudgetTraining) -> None:
        if set(ways_to_read(context.pipeline.parts)) == set(WAYS):
            super().run(context, settings)
        elif self.name not in context.run.metrics():
            why = "nothing to choose from: no fusion reader that fits, or no reader of its tokens"
            context.run.finish(self.name, {"ships": False, "why": why})

    def prepare(self, context: TrainingContext, settings: BudgetTraining) -> ReadingInputs:
        random, records = Random(context.run.seed), context.records
        rows = drawn(records, "held-out", settings.questions, random)
        fold = by_photo(records, rows, settings.folds, random)
        return ReadingInputs(evaluate_ways(context, rows), looked_up(context, rows), fold)

    def build(self, context: TrainingContext, settings: BudgetTraining) -> ReadingChoice:
        width = context.records["question"].shape[1]
        torch.manual_seed(context.run.seed)
        return ReadingChoice(ReadingChoiceConfig(width, width, NUM_SIGNALS, settings.hidden))

    def loss(
        self,
        context: TrainingContext,
        settings: BudgetTraining,
        data: ReadingInputs,
        model: nn.Module,
    ) -> Loss:
        """On all questions at once: a held-out split is small."""
        answered = data.answered

        def loss(step: int) -> Tensor:
            return F.mse_loss(model(*dropped(answered, settings)), answered.value)

        return loss

    def optimisation(self, settings: BudgetTraining) -> Optimisation:
        return Optimisation(settings.steps, settings.lr, settings.warmup, settings.weight_decay)

    def train(
        self, context: TrainingContext, settings: BudgetTraining, data: ReadingInputs
    ) -> CrossValidated:
        def train(steps: int, fold: int | None) -> ReadingChoice:
            own = replace(settings, steps=steps)
            some = data if fold is None else data.without(fold)
            model = self.build(context, own)
            model.start_from(some.answered.value.mean(0), some.answered.giga.mean(0))
            name = f"{self.name}/{steps}-{'all' if fold is None else f'fold{fold}'}"
            loss = self.loss(context, own, some, model)
            return fit(name, model, loss, self.optimisation(own), context.run)

        found = cross_fitted(
            train,
            lambda model: _error_on(model, data.answered),
            settings.steps,
            settings.folds,
            data.fold,
        )
        return CrossValidated(found, data, way_as_set(context.pipeline.parts))

    def compare(
        self,
        context: TrainingContext,
        settings: BudgetTraining,
        data: ReadingInputs,
        model: nn.Module,
    ) -> Metrics:
        assert isinstance(model, CrossValidated)
        giga_R, cost_R = data.answered.giga.mean(0).tolist(), model.choice.cost.tolist()
        today, prices_n = way_as_set(context.pipeline.parts), model.prices(data.fold)
        return {
            "looked_up": float(data.looked_up.float().mean()),
            "cost": {
                way: {"giga_flops": giga, "of_text": cost}
                for way, giga, cost in zip(WAYS, giga_R, cost_R, strict=True)
            },
            "price": model.curve.best(),
            "curve": model.curve.metrics(),
            "errors": {str(steps): error for steps, error in model.errors.items()},
            "held-out": compare_ways(model.expected, prices_n, data.judged, today),
        }

    def ships(self, context: TrainingContext, compared: Metrics) -> dict[str, bool]:
        return {self.name: choice_ships(compared["held-out"])}

    def components(self, settings: BudgetTraining, model: nn.Module) -> Mapping[str, nn.Module]:
        assert isinstance(model, CrossValidated)
        return {self.name: model.choice}

    def chosen_settings(
        self, context: TrainingContext, compared: Metrics, ships: Mapping[str, bool]
    ) -> dict[str, dict[str, Any]]:
        """The way that was set, for all questions, would leave it nothing to choose."""
        return {"decode": {"passages": "auto"}} if ships[self.name] else {}


@torch.inference_mode()
def _error_on(model: ReadingChoice, answered: Answered) -> Tensor:
    """[n]: of what the ways are worth next to each other, which alone decides."""
    error_nR = model(answered.visual, answered.question, answered.signals) - answered.value
    return (error_nR - error_nR.mean(1, keepdim=True)).square().mean(1)


@torch.inference_mode()
def _of_unseen(folds: Sequence[ReadingChoice], data: ReadingInputs) -> Expected:
    """Of each question by the head of its fold."""
    known = data.answered.visual, data.answered.question, data.answered.signals
    every = torch.arange(len(data.answered))
    scores_nR = torch.stack([model(*known) for model in folds])[data.fold, every]
    cost_nR = torch.stack([model.cost for model in folds])[data.fold]
    return Expected(scores_nR, cost_nR, network.flops(folds[0].config))
