"""Stage V: the budget controller (DBC) learns what a question deserves, on a held-out split.

Enters: held-out records. Leaves: a controller, and how it compares with every fixed budget at the
same mean FLOPs on questions that it did not learn from, with the interval of the difference.

Each question goes through all stages from prune to decode at every point of a grid of budgets; what
it is worth there is the score of the answer, what it costs are the FLOPs that the stages count. The
controller's real-valued (V', K') looks both up among the points around it, far ones at first, so
that a budget learns from others than its neighbours (the answer is right or wrong, so most points
are as good as the next); the loss is eq. 9, and variant B learns which questions want passages at
all. Half of the questions are OK-VQA's, where what is
asked is seldom in a passage.

Shape letters: n questions, G points of V', H points of K', S samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from skipqa.config import Between, Count, CountOrNone, Fraction
from skipqa.evaluation.systems.changes import with_backbone, with_components, with_config
from skipqa.nn.budget import (
    BudgetController,
    DifficultyBudget,
    DifficultyBudgetConfig,
    DiscreteBudget,
    DiscreteBudgetConfig,
)
from skipqa.nn.relaxation import linear_schedule
from skipqa.pipeline import Pipeline
from skipqa.stages.decode import decode, facts, read_order
from skipqa.stages.fuse import fuse
from skipqa.stages.verify import verify
from skipqa.tasks.okvqa import normalise
from skipqa.trace import StageRecord
from skipqa.training.loop import Decay, LearningRate, Phase, fit
from skipqa.training.pathway.context import CachedBackbone, TrainingContext
from skipqa.training.pathway.records import Records, replay
from skipqa.types import Budget, Draft, Retrieved

Variant = Literal["A", "B"]
VARIANTS: tuple[Variant, ...] = ("A", "B")
TOKENS = (32, 64, 128)
PASSAGES = (0, 1, 2, 4, 6, 10, 16)
GIGA = 1e9
WIDTH = (2.0, 0.25)  # of what a budget looks up, in points of the grid, first and last
FASTER = 20  # a single layer (B) that reads unit vectors has far to go
SAMPLES = 1_000


@dataclass(frozen=True, slots=True)
class BudgetTraining:
    steps: Count = 600
    lr: LearningRate = 1e-3
    warmup: CountOrNone = 20
    weight_decay: Decay = 0.05
    variant: Variant = "A"  # of the one that may ship; both are trained and compared
    hidden: Count = 32
    dropout: Fraction = 0.3  # of what it decides by, while training
    price: Annotated[float, Between(0.0, 10.0)] = 0.1  # lambda_2, of the whole range of costs
    questions: Count = 200  # of each data set and split, at most


def run(context: TrainingContext, settings: BudgetTraining) -> dict[str, Any]:
    """The stage: learn on two thirds of a held-out split, compare on the last, leave."""
    if "budget" in context.run.metrics():
        return context.run.metrics()
    random = Random(context.run.seed)

    def some(split: str) -> list[int]:
        groups = [context.records.select(split, source) for source in ("pocket-kb", "okvqa")]
        return [
            i for rows in groups for i in random.sample(rows, min(settings.questions, len(rows)))
        ]

    held_out, val = some("held-out"), some("val")
    random.shuffle(held_out)
    others = max(1, len(held_out) // 3)  # decide whether it ships
    tried = worth(context, [*held_out, *val])
    unseen, known = tried[:others], tried[others : len(held_out)]
    sets = {"held-out": unseen} | ({"val": tried[len(held_out) :]} if val else {})
    num_tokens, found = context.records["meaning"].shape[1], {}
    for variant in VARIANTS:
        controller = train(context, known, replace(settings, variant=variant))
        found[variant] = {
            name: compare(controller, known, questions, num_tokens)
            for name, questions in sets.items()
        }
        if variant == settings.variant:
            # A split is small: to win by less than chance might is not to win
            ships = found[variant]["held-out"]["gain"]["low"] > 0
            context.leave(controller, "budget", ships=ships)
    context.run.finish(
        "budget", {"ships": ships, "variant": settings.variant, **found[settings.variant]} | found
    )
    return context.run.metrics()


@dataclass(frozen=True, slots=True)
class Worth:
    """Of each question at each point of the grid."""

    value: Tensor  # [n, G, H] the score of the answer
    giga: Tensor  # [n, G, H] FLOPs, in units of 1e9
    visual: Tensor  # [n, d]
    question: Tensor  # [n, d]

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, some: slice) -> Worth:
        return Worth(self.value[some], self.giga[some], self.visual[some], self.question[some])

    def at(self, tokens_n: Tensor, passages_n: Tensor) -> tuple[Tensor, Tensor]:
        """Value and cost [n], linear between grid points."""
        places = _place(tokens_n, TOKENS), _place(passages_n, PASSAGES)
        return _between(self.value, *places), _between(self.giga, *places)

    def around(self, tokens_n: Tensor, passages_n: Tensor, width: float) -> tuple[Tensor, Tensor]:
        """Value and cost [n], the mean over grid points, the nearer the more."""
        row_nG = _nearness(_place(tokens_n, TOKENS), len(TOKENS), width)
        column_nH = _nearness(_place(passages_n, PASSAGES), len(PASSAGES), width)
        value, giga = (
            torch.einsum("ngh,ng,nh->n", table, row_nG, column_nH)
            for table in (self.value, self.giga)
        )
        return value, giga


def _nearness(place_n: Tensor, size: int, width: float) -> Tensor:
    apart = (place_n[:, None] - torch.arange(size)) / width
    return (-0.5 * apart.square()).softmax(1)


def _place(values: Tensor, grid: Sequence[int]) -> Tensor:
    """Where on the grid, as a real-valued index; differentiable."""
    points = torch.tensor(grid, dtype=values.dtype)
    left = (torch.searchsorted(points, values.detach().contiguous(), right=True) - 1).clamp(
        0, len(grid) - 2
    )
    return left + ((values - points[left]) / (points[left + 1] - points[left])).clamp(0, 1)


def _between(table_nGH: Tensor, row_n: Tensor, column_n: Tensor) -> Tensor:
    every = torch.arange(len(row_n))
    g, h = (
        place.detach().floor().long().clamp(0, size - 2)
        for place, size in ((row_n, table_nGH.shape[1]), (column_n, table_nGH.shape[2]))
    )
    y, x = row_n - g, column_n - h
    upper = torch.lerp(table_nGH[every, g, h], table_nGH[every, g, h + 1], x)
    lower = torch.lerp(table_nGH[every, g + 1, h], table_nGH[every, g + 1, h + 1], x)
    return torch.lerp(upper, lower, y)


def worth(context: TrainingContext, rows: Sequence[int]) -> Worth:
    """By answering each question at every point, in all processes."""
    found = torch.tensor(context.spread(answers, rows, "trying budgets", _seeing(context.pipeline)))
    some = torch.tensor(rows)
    embedded = (context.records[name][some].float() for name in ("low_res", "question"))
    return Worth(found[..., 0], found[..., 1], *embedded)


def _seeing(pipeline: Pipeline) -> tuple[float, float]:
    """FLOPs of what comes before prune, in units of 1e9, without retrieval and with it: the same
    for every picture, and next to the same for every question."""
    picture, giga = Image.new("RGB", (640, 480), (120, 130, 90)), []
    for passages in (0, 1):
        fixed = with_config(pipeline, budget={"passages": passages, "min_information": 0.0})
        fixed = with_components(fixed, budget=None)
        trace = fixed.answer(picture, "What is this?", fast_path=False).trace
        giga.append(sum(trace[name].flops for name in ("encode", "draft", "look")) / GIGA)
    return giga[0], giga[1]


@torch.inference_mode()
def answers(
    pipeline: Pipeline, records: Records, seeing: tuple[float, float]
) -> list[list[list[tuple[float, float]]]]:
    """For each question, V' and K': the score of the answer, and the FLOPs in units of 1e9."""
    pipeline = with_backbone(pipeline, CachedBackbone(pipeline.backbone))
    drafter = pipeline.components.drafter
    vocabulary = drafter.config.answers if drafter else ()
    return [
        _answers(pipeline, records, i, records.draft(i, vocabulary), seeing)
        for i in range(len(records))
    ]


def _answers(
    pipeline: Pipeline, records: Records, i: int, drafted: Draft, seeing: tuple[float, float]
) -> list[list[tuple[float, float]]]:
    components, config, backbone = pipeline.components, pipeline.config, pipeline.backbone
    question = records.question(i)
    right = {normalise(text): float(s) for text, s in records.about[i]["answers"].items()}
    said: dict[tuple[str, ...], tuple[float, float]] = {}  # by what is read

    def at(tokens: int) -> list[tuple[float, float]]:
        most = Budget(min(tokens, records["meaning"].shape[1]), PASSAGES[-1])
        again = replay(records, i, pipeline, most, components.saliency, components.region_query)
        found = []
        for count in PASSAGES:
            allowed = replace(most, passages=count)
            retrieved = Retrieved(again.retrieved.passages[:count], 0, 0)
            stages = [StageRecord(name) for name in ("verify", "fuse", "decode")]
            verified = verify(
                retrieved,
                question,
                allowed,
                again.kept,
                again.regions,
                backbone,
                config.verify,
                stages[0],
                components.verifier,
            )
            fused = fuse(again.kept, question, verified, config.fuse, stages[1], components.fusion)
            used = read_order(verified, fused)[: config.decode.max_passages]
            read = tuple(facts(verified, used))
            if read not in said:
                text = decode(
                    question,
                    drafted,
                    allowed,
                    again.kept,
                    again.regions,
                    verified,
                    fused,
                    backbone,
                    config.decode,
                    stages[2],
                )
                said[read] = right.get(normalise(text), 0.0), stages[2].flops / GIGA
            score, reading = said[read]
            spent = (stages[0].flops + stages[1].flops + (again.flops if count else 0)) / GIGA
            found.append((score, seeing[count > 0] + spent + reading))
        return found

    return [at(tokens) for tokens in TOKENS]


def build(context: TrainingContext, settings: BudgetTraining) -> BudgetController:
    width = context.records["question"].shape[1]
    torch.manual_seed(context.run.seed)
    if settings.variant == "B":
        return DifficultyBudget(DifficultyBudgetConfig(width, width))
    config = DiscreteBudgetConfig(
        width, width, settings.hidden, (TOKENS[0], TOKENS[-1]), (PASSAGES[0], PASSAGES[-1])
    )
    return DiscreteBudget(config)


def train(context: TrainingContext, known: Worth, settings: BudgetTraining) -> BudgetController:
    """On all of `known` at once: a held-out split is small."""
    controller = build(context, settings)
    least, most = _range(known)
    num_tokens = context.records["meaning"].shape[1]
    needs = (known.value.amax((1, 2)) > known.value[:, :, 0].amax(1)).float()
    if isinstance(controller, DifficultyBudget):
        _store_phi(controller, known, num_tokens)

    def loss(step: int) -> Tensor:
        visual, question = (F.dropout(x, settings.dropout) for x in (known.visual, known.question))
        if isinstance(controller, DifficultyBudget):
            d = controller.estimate(visual, question).clamp(1e-6, 1 - 1e-6)
            return F.binary_cross_entropy(d, needs)
        chosen = controller(visual, question, num_tokens, PASSAGES[-1])
        width = linear_schedule(*WIDTH, step, settings.steps)
        value, giga = known.around(chosen.tokens, chosen.passages, width)
        return settings.price * ((giga - least) / (most - least)).mean() - value.mean()

    lr = settings.lr if settings.variant == "A" else FASTER * settings.lr
    phase = Phase(settings.steps, lr, settings.warmup)
    name = f"budget-{settings.variant}-{settings.price:g}"
    return fit(name, controller, loss, phase, context.run, weight_decay=settings.weight_decay)


def _range(known: Worth) -> tuple[float, float]:
    """The mean cost of the cheapest budget, and of the dearest."""
    giga = known.giga.mean(0)
    return float(giga.min()), float(giga.max())


def _store_phi(controller: DifficultyBudget, known: Worth, num_tokens: int) -> None:
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
def compare(
    controller: BudgetController, known: Worth, unseen: Worth, num_tokens: int
) -> dict[str, Any]:
    """The controller's mean score and FLOPs, and what fixed budgets, or a draw between two of
    them, get for as many FLOPs: the best of all with hindsight, and the one that was best on the
    questions that the controller learned from, as it had to be."""
    decided = [
        controller.decide(v, q, num_tokens, PASSAGES[-1])
        for v, q in zip(unseen.visual, unseen.question, strict=True)
    ]
    tokens = torch.tensor([float(one.tokens) for one in decided])
    # What is retrieved and verified; a share of it (variant B) is more than the decoder reads
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
    alike_S = weight_Sn @ (value @ mixed)
    return {
        "questions": len(unseen),
        "adaptive": {"score": float(adaptive_S[0]), "giga_flops": float(flops_S[0])},
        "fixed_at_equal_flops": float(hindsight_S[0]),
        "gain": asdict(_gain(adaptive_S - hindsight_S)),
        "fixed_chosen_alike": {
            "score": float(alike_S[0]),
            "giga_flops": float((giga @ mixed).mean()),
        },
        "gain_over_chosen_alike": asdict(_gain(adaptive_S - alike_S)),
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
    """The best score of a fixed budget, or of a draw between two, at no more than `flops`; and how
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
