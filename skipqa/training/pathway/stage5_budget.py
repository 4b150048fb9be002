"""Stage V: the budget controller (DBC) learns which (V', K') each question needs.

Enters: held-out records. Leaves: a controller, and how it compares with every fixed budget at the
same mean FLOPs on questions that it was not trained on, with the interval of the gain.

Each question goes through all stages from prune to decode at every point of a grid of budgets
(`budget_grid.py`); its value there is the score of the answer, its cost the FLOPs. The controller's
real-valued (V', K') is looked up among the points around it, in a wide neighbourhood at first: an
answer is right or wrong, so most neighbouring points have equal value. The loss is eq. 9; variant B
learns which questions need passages at all. Half of the questions are OK-VQA's, whose answers are
seldom in a passage.

Shape letters: n questions, G points of V', H points of K', S samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.config import Between, Count, Fraction, NonNegative
from skipqa.nn.budget import (
    BudgetController,
    DifficultyBudget,
    DifficultyBudgetConfig,
    DiscreteBudget,
    DiscreteBudgetConfig,
)
from skipqa.nn.relaxation import linear_schedule
from skipqa.training.loop import Decay, LearningRate, Loss, Optimisation, fit
from skipqa.training.pathway.budget_grid import PASSAGES, TOKENS, BudgetGrid, evaluate_grid
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.stage import PathwayPart, PathwaySettings, PathwayStage
from skipqa.training.stage import Metrics

Variant = Literal["A", "B"]
WIDTH = (2.0, 0.25)  # of the neighbourhood of a budget, in grid points, first and last
LR_SCALE_B = 20  # a single layer that reads unit vectors has far to go
SAMPLES = 1_000


@dataclass(frozen=True, slots=True)
class BudgetTraining:
    steps: Count = 600
    lr: LearningRate = 1e-3
    warmup: NonNegative = 20
    weight_decay: Decay = 0.05
    variant: Variant = "A"  # of the one that may ship; both are trained and compared
    hidden: Count = 32
    dropout: Fraction = 0.3  # of what it decides by, while training
    price: Annotated[float, Between(0.0, 10.0)] = 0.1  # lambda_2, of the whole range of costs
    questions: Count = 200  # of each data set and split, at most


@dataclass(frozen=True, slots=True)
class BudgetInputs:
    """Two thirds of a held-out split are trained on; the last third decides what ships."""

    train: BudgetGrid
    compared: dict[str, BudgetGrid]  # by split


class BudgetPart(PathwayPart[BudgetTraining, BudgetInputs, dict[Variant, BudgetController]]):
    """Both variants are trained and compared; `settings.variant` may ship."""

    name = "budget"

    def prepare(self, context: TrainingContext, settings: BudgetTraining) -> BudgetInputs:
        random = Random(context.run.seed)

        def sample(split: str) -> list[int]:
            groups = [context.records.select(split, source) for source in ("pocket-kb", "okvqa")]
            return [
                i
                for rows in groups
                for i in random.sample(rows, min(settings.questions, len(rows)))
            ]

        held_out, val = sample("held-out"), sample("val")
        random.shuffle(held_out)
        others = max(1, len(held_out) // 3)
        grid = evaluate_grid(context, [*held_out, *val])
        compared = {"held-out": grid[:others]} | ({"val": grid[len(held_out) :]} if val else {})
        return BudgetInputs(grid[others : len(held_out)], compared)

    def build(
        self, context: TrainingContext, settings: BudgetTraining
    ) -> dict[Variant, BudgetController]:
        width = context.records["question"].shape[1]
        torch.manual_seed(context.run.seed)
        config = DiscreteBudgetConfig(
            width, width, settings.hidden, (TOKENS[0], TOKENS[-1]), (PASSAGES[0], PASSAGES[-1])
        )
        discrete = DiscreteBudget(config)
        torch.manual_seed(context.run.seed)
        return {"A": discrete, "B": DifficultyBudget(DifficultyBudgetConfig(width, width))}

    def loss(
        self,
        context: TrainingContext,
        settings: BudgetTraining,
        data: BudgetInputs,
        model: dict[Variant, BudgetController],
    ) -> Loss:
        """Of `settings.variant`, on the whole grid at once: a held-out split is small."""
        grid, controller = data.train, model[settings.variant]
        least, most = _range(grid)
        num_tokens = context.records["meaning"].shape[1]
        needs_passages = (grid.value.amax((1, 2)) > grid.value[:, :, 0].amax(1)).float()

        def loss(step: int) -> Tensor:
            visual = F.dropout(grid.visual, settings.dropout)
            question = F.dropout(grid.question, settings.dropout)
            if isinstance(controller, DifficultyBudget):
                d = controller.estimate(visual, question).clamp(1e-6, 1 - 1e-6)
                return F.binary_cross_entropy(d, needs_passages)
            chosen = controller(visual, question, num_tokens, PASSAGES[-1])
            width = linear_schedule(*WIDTH, step, settings.steps)
            value, giga = grid.around(chosen.tokens, chosen.passages, width)
            return settings.price * ((giga - least) / (most - least)).mean() - value.mean()

        return loss

    def optimisation(self, settings: BudgetTraining) -> Optimisation:
        lr = settings.lr if settings.variant == "A" else LR_SCALE_B * settings.lr
        return Optimisation(settings.steps, lr, settings.warmup, settings.weight_decay)

    def train(
        self, context: TrainingContext, settings: BudgetTraining, data: BudgetInputs
    ) -> dict[Variant, BudgetController]:
        model, trained = self.build(context, settings), {}
        for variant, controller in model.items():
            if isinstance(controller, DifficultyBudget):
                _store_phi(controller, data.train, context.records["meaning"].shape[1])
            own = replace(settings, variant=variant)
            name = f"{self.name}/{variant}-{own.price:g}"
            loss, optimisation = self.loss(context, own, data, model), self.optimisation(own)
            trained[variant] = fit(name, controller, loss, optimisation, context.run)
        return trained

    def compare(
        self,
        context: TrainingContext,
        settings: BudgetTraining,
        data: BudgetInputs,
        model: dict[Variant, BudgetController],
    ) -> Metrics:
        num_tokens = context.records["meaning"].shape[1]
        found = {
            variant: {
                split: compare_budgets(controller, data.train, grid, num_tokens)
                for split, grid in data.compared.items()
            }
            for variant, controller in model.items()
        }
        return {"variant": settings.variant, **found[settings.variant]} | found

    def ships(self, context: TrainingContext, compared: Metrics) -> dict[str, bool]:
        # A split is small: a gain within chance is no gain
        return {"budget": compared["held-out"]["gain"]["low"] > 0}

    def components(
        self, settings: BudgetTraining, model: dict[Variant, BudgetController]
    ) -> Mapping[str, nn.Module]:
        return {"budget": model[settings.variant]}


STAGE = PathwayStage("stage5", PathwaySettings(BudgetTraining()), (BudgetPart(),))


def _range(known: BudgetGrid) -> tuple[float, float]:
    """The mean cost of the cheapest budget, and of the dearest."""
    giga = known.giga.mean(0)
    return float(giga.min()), float(giga.max())


def _store_phi(controller: DifficultyBudget, known: BudgetGrid, num_tokens: int) -> None:
    """At each of 20 budgets the (rho_v, rho_r) that the split gets most from, never decreasing."""
    config = controller.config
    value, giga = known.value.mean(0), known.giga.mean(0)
    least, most = _range(known)
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


@dataclass(frozen=True, slots=True)
class Gain:
    """Of adaptive over fixed budgets, with the 95 % interval over resampled questions."""

    mean: float
    low: float
    high: float


@torch.inference_mode()
def compare_budgets(
    controller: BudgetController, known: BudgetGrid, unseen: BudgetGrid, num_tokens: int
) -> Metrics:
    """The controller's mean score and FLOPs, and what fixed budgets, or a random mixture of two,
    score at as many FLOPs: the best with hindsight, and the best on the questions that the
    controller was trained on."""
    decided = [
        controller.decide(v, q, num_tokens, PASSAGES[-1])
        for v, q in zip(unseen.visual, unseen.question, strict=True)
    ]
    tokens = torch.tensor([float(one.tokens) for one in decided])
    # What is retrieved and verified; a fraction of it (variant B) is more than the decoder reads
    passages = torch.tensor([float(one.passages) for one in decided])
    score, spent = unseen.at(tokens, passages)
    value, giga = unseen.value.flatten(1), unseen.giga.flatten(1)
    generator = torch.Generator().manual_seed(len(unseen))
    resampled = torch.randint(len(unseen), (SAMPLES, len(unseen)), generator=generator)
    weight_Sn = torch.stack([torch.bincount(r, minlength=len(unseen)) for r in resampled])
    weight_Sn = torch.cat((torch.ones(1, len(unseen)), weight_Sn)) / len(unseen)  # as it is, first
    adaptive_S, flops_S = weight_Sn @ score, weight_Sn @ spent
    hindsight_S = torch.stack(
        [
            best_fixed(v, c, float(f))[0]
            for v, c, f in zip(weight_Sn @ value, weight_Sn @ giga, flops_S, strict=True)
        ]
    )
    known_value, known_giga = known.value.flatten(1).mean(0), known.giga.flatten(1).mean(0)
    mixed = best_fixed(known_value, known_giga, float(flops_S[0]))[1]
    from_train_S = weight_Sn @ (value @ mixed)
    return {
        "questions": len(unseen),
        "adaptive": {"score": float(adaptive_S[0]), "giga_flops": float(flops_S[0])},
        "fixed_at_equal_flops": float(hindsight_S[0]),
        "gain": asdict(_gain(adaptive_S - hindsight_S)),
        "fixed_from_train": {
            "score": float(from_train_S[0]),
            "giga_flops": float((giga @ mixed).mean()),
        },
        "gain_over_fixed_from_train": asdict(_gain(adaptive_S - from_train_S)),
        "fixed": [
            {"tokens": t, "passages": p, "score": float(v), "giga_flops": float(c)}
            for (t, p), v, c in zip(
                ((t, p) for t in TOKENS for p in PASSAGES), value.mean(0), giga.mean(0), strict=True
            )
        ],
        "no_retrieval": float((passages == 0).float().mean()),
        "mean_tokens": float(tokens.mean()),
        "mean_passages": float(passages.mean()),
    }


def _gain(samples_S: Tensor) -> Gain:
    """The first is of the questions as they are."""
    low, high = samples_S[1:].quantile(torch.tensor([0.025, 0.975])).tolist()
    return Gain(float(samples_S[0]), low, high)


def best_fixed(value_P: Tensor, giga_P: Tensor, flops: float) -> tuple[Tensor, Tensor]:
    """The best score of a fixed budget, or of a mixture of two, at no more than `flops`; and how
    often each is drawn, [P]. Where even the cheapest costs more, the cheapest."""
    flops = max(flops, float(giga_P.min())) + 1e-6
    affordable = giga_P <= flops
    step_PP = (giga_P[None, :] - giga_P[:, None]).clamp(min=1e-9)
    fraction_PP = ((flops - giga_P[:, None]) / step_PP).clamp(0, 1)  # of the dearer of the two
    fraction_PP = fraction_PP.masked_fill(affordable[None, :], 0.0)
    mixed_PP = value_P[:, None] + fraction_PP * (value_P[None, :] - value_P[:, None])
    mixed_PP = mixed_PP.masked_fill(~affordable[:, None], -torch.inf)
    below, above = divmod(int(mixed_PP.argmax()), len(value_P))
    drawn_P = torch.zeros_like(value_P)
    drawn_P[below] += 1 - fraction_PP[below, above]
    drawn_P[above] += fraction_PP[below, above]
    return mixed_PP[below, above], drawn_P
