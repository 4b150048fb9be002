"""Stage V: the budget controller (DBC) learns whether to look anything up, where, and how much.

Enters: records. Leaves: a controller, and how it compares with every fixed budget at the same mean
FLOPs on questions that it was not trained on, with the interval of the gain.

Each held-out question goes through all stages from prune to decode at every point of a grid of
budgets (`budget_grid.py`); its value there is the score of the answer, its cost the FLOPs. The gate
learns the gain of the usual budget over no retrieval. The real-valued (V', K') is looked up among
the points around it, in a wide neighbourhood at first: an answer is right or wrong, so most
neighbouring points have equal value. That loss is eq. 9; variant B learns which questions need
passages at all. Other targets (`budget_targets.py`) join the loss.

There are few questions, so all are trained on and all are judged, by controllers of five folds, of
which none is asked about a photo that it saw. The folds choose the number of steps and the
thresholds; the controller that is exported is trained in the same way on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from random import Random

import torch
from torch import Tensor, nn

from skipqa.nn.budget import (
    BudgetController,
    DifficultyBudget,
    DifficultyBudgetConfig,
    DiscreteBudget,
    DiscreteBudgetConfig,
)
from skipqa.stages.budget_signals import NUM_SIGNALS
from skipqa.training.loop import Loss, Optimisation, fit
from skipqa.training.pathway.budget_grid import PASSAGES, TOKENS, BudgetGrid, evaluate_grid
from skipqa.training.pathway.budget_loss import (
    GatedTraining,
    cost_range,
    difficulty_loss,
    error_on,
    gated_loss,
)
from skipqa.training.pathway.budget_quality import (
    Curve,
    Decided,
    compare_budgets,
    decide,
    gate_curve,
)
from skipqa.training.pathway.budget_settings import BudgetTraining, Variant
from skipqa.training.pathway.budget_targets import (
    ALWAYS,
    ReaderGains,
    Targets,
    collect_targets,
    not_measured,
)
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.folds import by_photo, cross_fitted, drawn
from skipqa.training.pathway.gains import ON_CPU, load_or_measure
from skipqa.training.pathway.source_quality import SourceChoice, choose_sources, useful_probs
from skipqa.training.pathway.stage import PathwayPart, PathwaySettings, PathwayStage
from skipqa.training.pathway.stage5_reading import ReadingPart
from skipqa.training.stage import Metrics

LR_SCALE_B = 20  # a single layer that reads unit vectors has far to go
JUDGED = ("okvqa", "pocket-kb")  # a controller that loses on one of them does not ship
ROUNDING = 1e-5  # what its own FLOPs, and floats, cost a controller that equals a fixed budget


@dataclass(frozen=True, slots=True)
class BudgetInputs:
    train: BudgetGrid  # of held-out questions
    fold: Tensor  # [n] of each of them
    targets: Targets  # of them, in the same order, and then of training questions
    rows: tuple[int, ...]  # of the records, of each question in `train`
    val: BudgetGrid | None = None

    def without(self, fold: int) -> BudgetInputs:
        some = [i for i, own in enumerate(self.fold.tolist()) if own != fold]
        return replace(
            self,
            train=self.train.only(some),
            fold=self.fold[some],
            targets=self.targets.without(fold),
            rows=tuple(self.rows[i] for i in some),
        )


class CrossValidated(nn.Module):
    """A controller of all questions, and one of each fold, which saw the other folds alone."""

    def __init__(
        self, controller: BudgetController, folds: list[BudgetController], errors: dict[int, float]
    ) -> None:
        super().__init__()
        self.controller = controller
        self.folds = folds
        self.errors = errors  # on questions that were not seen, by the number of steps
        self.curve: Curve | None = None
        self.sources: SourceChoice | None = None

    def decide(self, data: BudgetInputs, num_tokens: int) -> Decided:
        """For the questions of every fold, by the controller that did not see them."""
        return decide(self.folds, data.fold, data.train, num_tokens)


Models = dict[Variant, nn.Module]


class BudgetPart(PathwayPart[BudgetTraining, BudgetInputs, Models]):
    """Both variants are trained and compared; `settings.variant` may ship."""

    name = "budget"

    def __init__(self, reader_gains: ReaderGains = not_measured) -> None:
        self.reader_gains = reader_gains

    def prepare(self, context: TrainingContext, settings: BudgetTraining) -> BudgetInputs:
        random, records = Random(context.run.seed), context.records
        held_out, val = (
            drawn(records, split, settings.questions, random) for split in ("held-out", "val")
        )
        train = records.select("train")
        fold = by_photo(records, held_out, settings.folds, random)
        folds = torch.cat((fold, torch.full((len(train),), ALWAYS)))
        return BudgetInputs(
            evaluate_grid(context, held_out),
            fold,
            collect_targets(context, [*held_out, *train], folds, self.reader_gains),
            tuple(held_out),
            evaluate_grid(context, val) if val else None,
        )

    def build(self, context: TrainingContext, settings: BudgetTraining) -> Models:
        width = context.records["question"].shape[1]
        torch.manual_seed(context.run.seed)
        config = DiscreteBudgetConfig(
            width,
            width,
            settings.hidden,
            (TOKENS[0], TOKENS[-1]),
            (PASSAGES[1], PASSAGES[-1]),
            NUM_SIGNALS,
            gate=True,
            index_width=width,
        )
        gated = GatedTraining(DiscreteBudget(config))
        torch.manual_seed(context.run.seed)
        difficulty = DifficultyBudgetConfig(width, width, signals=NUM_SIGNALS)
        return {"A": gated, "B": DifficultyBudget(difficulty)}

    def loss(
        self,
        context: TrainingContext,
        settings: BudgetTraining,
        data: BudgetInputs,
        model: Models,
    ) -> Loss:
        """Of `settings.variant`."""
        trained = model[settings.variant]
        if isinstance(trained, DifficultyBudget):
            return difficulty_loss(trained, data.train, settings)
        assert isinstance(trained, GatedTraining)
        return gated_loss(trained, data.train, data.targets, settings, _num_tokens(context))

    def optimisation(self, settings: BudgetTraining) -> Optimisation:
        lr = settings.lr if settings.variant == "A" else LR_SCALE_B * settings.lr
        return Optimisation(settings.steps, lr, settings.warmup, settings.weight_decay)

    def train(
        self, context: TrainingContext, settings: BudgetTraining, data: BudgetInputs
    ) -> Models:
        found: Models = {}
        for variant in ("A", "B"):
            own = replace(settings, variant=variant)
            trained = self._cross_validated(context, own, data)
            if variant == "A":
                _choose_thresholds(trained, context, own, data)
            found[variant] = trained
        return found

    def _cross_validated(
        self, context: TrainingContext, settings: BudgetTraining, data: BudgetInputs
    ) -> CrossValidated:
        def train(steps: int, fold: int | None) -> nn.Module:
            own = replace(settings, steps=steps)
            if fold is None:
                return self._fit(context, own, data, "all")
            return self._fit(context, own, data.without(fold), f"fold{fold}")

        found = cross_fitted(
            train,
            lambda model: error_on(model, data.train),
            settings.steps,
            settings.folds,
            data.fold,
        )
        return CrossValidated(
            _controller(found.whole), list(map(_controller, found.folds)), found.errors
        )

    def _fit(
        self, context: TrainingContext, settings: BudgetTraining, data: BudgetInputs, name: str
    ) -> nn.Module:
        model, variant = self.build(context, settings), settings.variant
        if isinstance(controller := model[variant], DifficultyBudget):
            _store_phi(controller, data.train, _num_tokens(context))
        loss = self.loss(context, settings, data, model)
        name = f"{self.name}/{variant}-{settings.steps}-{name}"
        return fit(name, controller, loss, self.optimisation(settings), context.run)

    def compare(
        self,
        context: TrainingContext,
        settings: BudgetTraining,
        data: BudgetInputs,
        model: Models,
    ) -> Metrics:
        num_tokens = _num_tokens(context)
        found: dict[str, Metrics] = {}
        for variant, trained in model.items():
            assert isinstance(trained, CrossValidated)
            decided = trained.decide(data, num_tokens)
            own: Metrics = {
                "errors": {str(steps): error for steps, error in trained.errors.items()},
                "held-out": compare_budgets(
                    _gated(decided, trained.folds, data.fold), data.train, data.train
                ),
            }
            if data.val is not None:
                first = torch.zeros(len(data.val), dtype=torch.long)
                decided = decide([trained.controller], first, data.val, num_tokens)
                decided = _gated(decided, [trained.controller], first)
                own["val"] = compare_budgets(decided, data.val, data.train)
            if trained.curve is not None:
                own |= {"threshold": trained.curve.best(), "curve": trained.curve.metrics()}
            if trained.sources is not None:
                own["sources"] = asdict(trained.sources)
            found[variant] = own
        return {"variant": settings.variant, **found[settings.variant], **found}

    def ships(self, context: TrainingContext, compared: Metrics) -> dict[str, bool]:
        # A split is small: a gain within chance is no gain
        held_out = compared["held-out"]
        judged = [held_out["by_source"].get(source) for source in JUDGED]
        no_loss = all(found is not None and found["gain"]["mean"] >= -ROUNDING for found in judged)
        return {"budget": held_out["gain"]["low"] > 0 and no_loss}

    def components(self, settings: BudgetTraining, model: Models) -> Mapping[str, nn.Module]:
        trained = model[settings.variant]
        assert isinstance(trained, CrossValidated)
        return {"budget": trained.controller}


def best_gains(context: TrainingContext, on_cpu: int = ON_CPU) -> Tensor:
    """What the verifier was trained on tells how much there is to gain."""
    return load_or_measure(context, on_cpu).of_best()


STAGE = PathwayStage(
    "stage5",
    PathwaySettings(BudgetTraining()),
    (BudgetPart(best_gains), ReadingPart()),
    needs_pocket="what looking up gains is measured with pocket's reader",
)


def _num_tokens(context: TrainingContext) -> int:
    return int(context.records["meaning"].shape[1])


def _controller(model: nn.Module) -> BudgetController:
    found = model.controller if isinstance(model, GatedTraining) else model
    assert isinstance(found, BudgetController)
    return found


def _choose_thresholds(
    trained: CrossValidated,
    context: TrainingContext,
    settings: BudgetTraining,
    data: BudgetInputs,
) -> None:
    """Of the exported controller by all folds; of a fold by the others, so that the questions by
    which it is judged choose nothing."""
    opened = trained.decide(data, _num_tokens(context))
    trained.curve = gate_curve(opened, data.train, settings.most_flops)
    _gate(trained.controller).fill_(trained.curve.best())
    for fold, controller in enumerate(trained.folds):
        others = (data.fold != fold).nonzero()[:, 0].tolist()
        curve = gate_curve(opened.where(others), data.train.only(others), settings.most_flops)
        _gate(controller).fill_(curve.best())
    gated = _gated(opened, trained.folds, data.fold)
    looked_up = (gated.passages > 0).nonzero()[:, 0].tolist()
    if not looked_up:
        return
    folds = [fold for fold in trained.folds if isinstance(fold, DiscreteBudget)]
    grid, targets = data.train.only(looked_up), data.targets
    probs_nI = useful_probs(folds, data.fold[looked_up], grid, targets.indexes_ID)
    trained.sources = choose_sources(
        context,
        [data.rows[i] for i in looked_up],
        grid,
        probs_nI,
        targets.useful[looked_up],
        settings.source_recall,
    )
    assert isinstance(trained.controller, DiscreteBudget)
    assert trained.controller.sources is not None
    trained.controller.sources.threshold.fill_(trained.sources.threshold)


def _gate(controller: BudgetController) -> Tensor:
    assert isinstance(controller, DiscreteBudget)
    assert controller.gate is not None
    return controller.gate.threshold


def _gated(opened: Decided, controllers: list[BudgetController], fold_n: Tensor) -> Decided:
    """With the gate of each fold, where its controller has one."""
    thresholds = [
        float(one.gate.threshold)
        if isinstance(one, DiscreteBudget) and one.gate is not None
        else 0.0
        for one in controllers
    ]
    return opened.with_gate(torch.tensor(thresholds)[fold_n])


def _store_phi(controller: DifficultyBudget, known: BudgetGrid, num_tokens: int) -> None:
    """At each of 20 budgets the (rho_v, rho_r) that the split gets most from, never decreasing."""
    config = controller.config
    value, giga = known.value.mean(0), known.giga.mean(0)
    least, most = cost_range(known)
    rho_v, rho_r = [config.rho_v[0]], [config.rho_r[0]]
    for point in range(config.grid):
        allowed = least + (most - least) * point / (config.grid - 1)
        best = (-1.0, rho_v[-1], rho_r[-1])
        for g, tokens in enumerate(TOKENS):
            for h, passages in enumerate(PASSAGES):
                v, r = tokens / num_tokens, passages / PASSAGES[-1]
                inside = config.rho_v[0] <= v <= config.rho_v[1] and r <= config.rho_r[1]
                if inside and v >= rho_v[-1] and r >= rho_r[-1] and giga[g, h] <= allowed:
                    best = max(best, (float(value[g, h]), v, r))
        rho_v.append(best[1])
        rho_r.append(best[2])
    controller.store_phi(rho_v[1:], rho_r[1:])
