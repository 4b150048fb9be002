"""Stage V: the budget controller (DBC) learns what a question deserves, on a held-out split.

Enters: held-out records and a verifier's scores. Leaves: a controller, and how it compares with
every fixed budget at the same mean FLOPs on questions that it did not learn from.

Each question goes through prune, regions, retrieve and verify at every V' of a grid; what it is
worth at (V', K') is the score of the answer: the reader's with the best two of K' passages where
one of them is accepted, else the draft or, without one, the reader's own. Costs are the FLOPs that
the pipeline counts. The controller's real-valued (V', K') looks its worth and cost up between grid
points, so gradients reach it; the loss is eq. 9. Half of the questions are OK-VQA's, where what is
asked is seldom in a passage.

Shape letters: n questions, G points of V', H points of K'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from random import Random
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from skipqa.config import Between, Count, CountOrNone
from skipqa.evaluation.scoring.okvqa import normalise
from skipqa.nn.budget import (
    BudgetController,
    DifficultyBudget,
    DifficultyBudgetConfig,
    DiscreteBudget,
    DiscreteBudgetConfig,
)
from skipqa.nn.verifier import Verifier
from skipqa.pipeline import Pipeline
from skipqa.stages.prompts import reading_prompt
from skipqa.stages.verify import scores_of
from skipqa.training.loop import Decay, Phase, Rate, fit
from skipqa.training.records import replay
from skipqa.training.study import Study
from skipqa.types import Budget

TOKENS = (32, 64, 128)
PASSAGES = (0, 1, 2, 4, 6, 10, 16)
READ = 2  # passages that the decoder reads
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class BudgetTraining:
    steps: Count = 400
    rate: Rate = 1e-3
    warmup: CountOrNone = 20
    weight_decay: Decay = 0.05
    variant: Literal["A", "B"] = "A"
    hidden: Count = 32
    price: Annotated[float, Between(0.0, 10.0)] = 0.1  # lambda_2, of the whole range of costs
    questions: Count = 100  # of each data set and split, at most


def run(study: Study, settings: BudgetTraining) -> dict[str, Any]:
    """The stage: learn on two thirds of a held-out split, compare on the last, leave."""
    if "budget" in study.run.metrics():
        return study.run.metrics()
    run, verifier = study.run, study.pipeline.components.verifier
    random = Random(run.seed)

    def some(split: str) -> list[int]:
        groups = [study.records.select(split, source) for source in ("pocket-kb", "okvqa")]
        return [
            i for rows in groups for i in random.sample(rows, min(settings.questions, len(rows)))
        ]

    held_out = some("held-out")
    cost = measure_cost(study)
    random.shuffle(held_out)
    others = len(held_out) // 3  # decide whether it ships
    known, unseen = (
        worth(study, verifier, rows) for rows in (held_out[others:], held_out[:others])
    )
    controller = train(study, known, cost, settings)
    num_tokens = study.records["meaning"].shape[1]
    compared = {"held-out": compare(controller, unseen, cost, num_tokens)}
    if rows := some("val"):
        scored = worth(study, verifier, rows)
        compared["val"] = compare(controller, scored, cost, num_tokens)
    adaptive, fixed = (compared["held-out"][n] for n in ("adaptive", "fixed_at_equal_flops"))
    # A split is small: to win by less than the mean is uncertain by is not to win
    ships = adaptive["score"] - adaptive["standard_error"] >= fixed
    study.leave(controller, "budget", ships=ships)
    run.finish(
        "budget",
        {"ships": ships, "giga_flops": cost.giga[0].tolist(), **compared},
    )
    return run.metrics()


@dataclass(frozen=True, slots=True)
class Worth:
    """Of each question at each point of the grid."""

    rows: list[int]
    value: Tensor  # [n, G, H] expected score of the answer
    visual: Tensor  # [n, d]
    question: Tensor  # [n, d]

    def at(self, tokens_n: Tensor, passages_n: Tensor) -> Tensor:
        """[n], linear between grid points."""
        return _between(self.value, _place(tokens_n, TOKENS), _place(passages_n, PASSAGES))


@dataclass(frozen=True, slots=True)
class Cost:
    """Mean FLOPs of a question at each point, in units of 1e9."""

    giga: Tensor  # [G, H]

    def at(self, tokens_n: Tensor, passages_n: Tensor) -> Tensor:
        table = self.giga.expand(len(tokens_n), -1, -1)
        return _between(table, _place(tokens_n, TOKENS), _place(passages_n, PASSAGES))


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


@torch.no_grad()
def worth(study: Study, verifier: Verifier | None, rows: Sequence[int]) -> Worth:
    records, value = study.records, torch.zeros(len(rows), len(TOKENS), len(PASSAGES))
    counted = study.run.counted("trying budgets")
    for n, i in enumerate(rows):
        counted(n, len(rows))
        about = records.about[i]
        right = {normalise(text): float(s) for text, s in about["answers"].items()}
        read = cache(partial(_read, study, about))
        for g, tokens in enumerate(TOKENS):
            accepted = _accepted(study, verifier, i, tokens)
            for h, passages in enumerate(PASSAGES):
                best = sorted((pair for pair in accepted if pair[1] < passages), reverse=True)
                texts = tuple(text for _, _, text in best[:READ])
                said = read(texts) if texts or not about["draft"] else about["draft"]
                value[n, g, h] = right.get(normalise(said), 0.0)
    counted(len(rows), len(rows))
    some = torch.tensor(rows)
    return Worth(
        list(rows), value, records["glance"][some].float(), records["question"][some].float()
    )


def _accepted(
    study: Study, verifier: Verifier | None, i: int, tokens: int
) -> list[tuple[float, int, str]]:
    """(nu_j, place among the retrieved, text) of what is accepted with so many tokens."""
    pipeline = study.pipeline
    kept, regions, retrieved = replay(
        study.records,
        i,
        pipeline,
        Budget(min(tokens, study.records["meaning"].shape[1]), PASSAGES[-1]),
        pipeline.components.saliency,
        pipeline.components.region_query,
    )
    if not retrieved.passages:
        return []
    nu, _ = scores_of(
        retrieved.passages,
        study.embed([one.passage.text for one in retrieved.passages]),
        study.records.question(i),
        kept,
        regions,
        pipeline.backbone,
        pipeline.config.verify,
        verifier,
    )
    return [
        (score, place, one.passage.text)
        for place, (score, one) in enumerate(zip(nu, retrieved.passages, strict=True))
        if score >= pipeline.config.verify.threshold
    ]


def _read(study: Study, about: dict[str, Any], best_first: tuple[str, ...]) -> str:
    """The reader's answer."""
    shown = about["seen"][: study.pipeline.config.decode.words]
    prompt = reading_prompt(best_first[::-1], shown, about["question"])
    most = study.pipeline.config.decode.max_new_tokens
    return study.pipeline.backbone.complete(prompt, most).text


def measure_cost(study: Study, samples: int = 2) -> Cost:
    """By asking a few questions with and without passages to read; each further passage costs its
    encoding. V' is not tried: what tokens cost beside looking and reading is lost in rounding."""
    picture = Image.new("RGB", (640, 480), (120, 130, 90))
    asked = [study.records.about[i]["question"] for i in study.rows("held-out")[:samples]]
    counted, giga = study.run.counted("counting FLOPs"), []
    for done, passages in enumerate((0, 1, READ)):
        counted(done, 3)
        fixed = _with_budget(study.pipeline, TOKENS[1], passages)
        spent = [fixed.answer(picture, text, fast_path=False).trace.flops for text in asked]
        giga.append(sum(spent) / len(spent) / GIGA)
    counted(3, 3)
    texts = [passage.text for passage in study.records.table.passages[:20]]
    each = study.pipeline.backbone.encode_texts(texts).flops / len(texts) / GIGA
    found = [giga[p] if p <= READ else giga[READ] + (p - READ) * each for p in PASSAGES]
    return Cost(torch.tensor(found).expand(len(TOKENS), -1))


def _with_budget(pipeline: Pipeline, tokens: int, passages: int) -> Pipeline:
    budget = replace(pipeline.config.budget, tokens=tokens, passages=passages)
    config = replace(pipeline.config, budget=budget)
    learned = replace(pipeline.components, budget=None)
    return Pipeline(pipeline.backbone, pipeline.index, config, learned, pipeline.stages)


def build(study: Study, settings: BudgetTraining) -> BudgetController:
    width = study.records["question"].shape[1]
    torch.manual_seed(study.run.seed)
    if settings.variant == "B":
        return DifficultyBudget(DifficultyBudgetConfig(width, width))
    config = DiscreteBudgetConfig(
        width, width, settings.hidden, (TOKENS[0], TOKENS[-1]), (PASSAGES[0], PASSAGES[-1])
    )
    return DiscreteBudget(config)


def train(study: Study, known: Worth, cost: Cost, settings: BudgetTraining) -> BudgetController:
    """On all of `known` at once: a held-out split is small."""
    controller = build(study, settings)
    least, most = float(cost.giga.min()), float(cost.giga.max())
    num_tokens = study.records["meaning"].shape[1]
    needs = (known.value.amax((1, 2)) > known.value[:, :, 0].amax(1)).float()
    if isinstance(controller, DifficultyBudget):
        _store_phi(controller, known, cost, num_tokens)

    def loss(step: int) -> Tensor:
        visual, question = known.visual, F.dropout(known.question, 0.1)
        if isinstance(controller, DifficultyBudget):
            d = controller.estimate(visual, question).clamp(1e-6, 1 - 1e-6)
            return F.binary_cross_entropy(d, needs)
        chosen = controller(visual, question, num_tokens, PASSAGES[-1])
        spent = (cost.at(chosen.tokens, chosen.passages) - least) / (most - least)
        value = known.at(chosen.tokens, chosen.passages)
        return settings.price * spent.mean() - value.mean()

    phase = Phase(settings.steps, settings.rate, settings.warmup)
    name = f"budget-{settings.variant}-{settings.price:g}"
    return fit(name, controller, loss, phase, study.run, weight_decay=settings.weight_decay)


def _store_phi(controller: DifficultyBudget, known: Worth, cost: Cost, num_tokens: int) -> None:
    """At each of 20 budgets the (rho_v, rho_r) that the split gets most from, never decreasing."""
    config = controller.config
    least, most = float(cost.giga.min()), float(cost.giga.max())
    rho_v, rho_r = [config.rho_v[0]], [config.rho_r[0]]
    for point in range(config.grid):
        allowed = least + (most - least) * point / (config.grid - 1)
        best = (-1.0, rho_v[-1], rho_r[-1])
        for g, tokens in enumerate(TOKENS):
            for h, passages in enumerate(PASSAGES):
                v, r = tokens / num_tokens, passages / PASSAGES[-1]
                inside = config.rho_v[0] <= v <= config.rho_v[1] and r <= config.rho_r[1]
                if inside and v >= rho_v[-1] and r >= rho_r[-1] and cost.giga[g, h] <= allowed:
                    best = max(best, (float(known.value[:, g, h].mean()), v, r))
        rho_v.append(best[1])
        rho_r.append(best[2])
    controller.store_phi(rho_v[1:], rho_r[1:])


@torch.inference_mode()
def compare(
    controller: BudgetController, known: Worth, cost: Cost, num_tokens: int
) -> dict[str, Any]:
    """The controller's mean score and FLOPs, and what fixed budgets, or a draw between two of
    them, get at most for as many FLOPs."""
    decided = [
        controller.decide(v, q, num_tokens, PASSAGES[-1])
        for v, q in zip(known.visual, known.question, strict=True)
    ]
    tokens = torch.tensor([float(one.tokens) for one in decided])
    passages = torch.tensor([float(one.most_passages(PASSAGES[-1])) for one in decided])
    spent, score = cost.at(tokens, passages), known.at(tokens, passages)
    fixed = [
        (float(cost.giga[g, h]), float(known.value[:, g, h].mean()), t, p)
        for g, t in enumerate(TOKENS)
        for h, p in enumerate(PASSAGES)
    ]
    mean = float(spent.mean())
    return {
        "questions": len(known.rows),
        "adaptive": {
            "score": float(score.mean()),
            "standard_error": float(score.std(correction=0) / len(score) ** 0.5),
            "giga_flops": mean,
        },
        "fixed_at_equal_flops": _frontier(fixed, mean),
        "fixed": [
            {"tokens": t, "passages": p, "score": s, "giga_flops": c} for c, s, t, p in fixed
        ],
        "no_retrieval": float((passages == 0).float().mean()),
        "mean_tokens": float(tokens.mean()),
        "mean_passages": float(passages.mean()),
    }


def _frontier(fixed: Sequence[tuple[float, float, int, int]], flops: float) -> float:
    """The best score of a fixed budget, or of a draw between two, at no more than `flops`."""
    best = max((s for c, s, *_ in fixed if c <= flops + 1e-6), default=0.0)
    for below, low, *_ in fixed:
        for above, high, *_ in fixed:
            if below <= flops < above:
                share = (flops - below) / (above - below)
                best = max(best, low + share * (high - low))
    return best
