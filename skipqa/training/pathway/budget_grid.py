"""What every budget is worth: each question answered at every point of a grid of (V', K').

Enters: records and the pipeline. Leaves: the score of the answer and the FLOPs of every question at
every point, which can be looked up between the points. Nothing is trained here.

Shape letters: n questions, G points of V', H points of K'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch import Tensor

from skipqa.backbones.caching import CachedBackbone
from skipqa.pipeline import Pipeline
from skipqa.stages.decode import facts, read_order
from skipqa.state import State
from skipqa.tasks.okvqa import normalise
from skipqa.trace import Trace
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.records import Records, replay, replaying
from skipqa.types import Budget, Draft, Retrieved

TOKENS = (32, 64, 128)
PASSAGES = (0, 1, 2, 4, 6, 10, 16)
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class BudgetGrid:
    """Value and cost of each question at each point of the grid."""

    value: Tensor  # [n, G, H] the score of the answer
    giga: Tensor  # [n, G, H] FLOPs, in units of 1e9
    visual: Tensor  # [n, d]
    question: Tensor  # [n, d]

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, some: slice) -> BudgetGrid:
        return BudgetGrid(self.value[some], self.giga[some], self.visual[some], self.question[some])

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


def evaluate_grid(context: TrainingContext, rows: Sequence[int]) -> BudgetGrid:
    """By answering each question at every point, over all workers."""
    found = torch.tensor(
        context.spread(answers, rows, "trying budgets", _flops_before_prune(context.pipeline))
    )
    some = torch.tensor(rows)
    embedded = (context.records[name][some].float() for name in ("low_res", "question"))
    return BudgetGrid(found[..., 0], found[..., 1], *embedded)


def _flops_before_prune(pipeline: Pipeline) -> tuple[float, float]:
    """In units of 1e9, without retrieval and with it: the same for every image, and nearly the same
    for every question."""
    image, giga = Image.new("RGB", (640, 480), (120, 130, 90)), []
    for passages in (0, 1):
        budget = {"passages": passages, "min_information": 0.0}
        fixed, trace = pipeline.with_config(budget=budget).with_components(budget=None), Trace()
        fixed.run(State(image, "What is this?"), stop="look", trace=trace)
        giga.append(trace.flops / GIGA)
    return giga[0], giga[1]


@torch.inference_mode()
def answers(
    pipeline: Pipeline, records: Records, before: tuple[float, float]
) -> list[list[list[tuple[float, float]]]]:
    """For each question, V' and K': the score of the answer, and the FLOPs in units of 1e9."""
    pipeline = replaying(pipeline.with_backbone(CachedBackbone(pipeline.backbone)))
    drafter = pipeline.components.drafter
    vocabulary = drafter.vocabulary() if drafter else {}
    return [
        _answers(pipeline, records, i, records.draft(i, vocabulary), before)
        for i in range(len(records))
    ]


def _answers(
    pipeline: Pipeline, records: Records, i: int, drafted: Draft, before: tuple[float, float]
) -> list[list[tuple[float, float]]]:
    right = {normalise(text): float(s) for text, s in records.about[i]["answers"].items()}
    read: dict[tuple[str, ...], tuple[float, float]] = {}  # by the passages: equal ones once

    def at(tokens: int) -> list[tuple[float, float]]:
        most = Budget(min(tokens, records["meaning"].shape[1]), PASSAGES[-1])
        retrieved, retrieving = replay(records, i, pipeline, most)
        found = []
        for count in PASSAGES:
            trace, passages = Trace(), retrieved.retrieved.passages[:count]
            state = retrieved.add(
                draft=drafted,
                budget=replace(most, passages=count),
                retrieved=Retrieved(passages, 0, 0),
            )
            state = pipeline.run(state, start="verify", stop="fuse", trace=trace)
            spent = (trace.flops + (retrieving if count else 0)) / GIGA
            used = read_order(state.verified, state.fused)[: pipeline.config.decode.max_passages]
            texts = tuple(facts(state.verified, used))
            if texts not in read:
                trace = Trace()
                answer = pipeline.run(state, start="decode", trace=trace).answer.text
                read[texts] = right.get(normalise(answer), 0.0), trace.flops / GIGA
            score, reading = read[texts]
            found.append((score, before[count > 0] + spent + reading))
        return found

    return [at(tokens) for tokens in TOKENS]
