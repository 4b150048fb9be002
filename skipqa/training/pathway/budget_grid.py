"""What every budget is worth: each question answered at every point of a grid of (V', K').

Enters: records and the pipeline. Leaves: the score of the answer and the FLOPs of every question at
every point, which can be looked up between the points. The FLOPs are those of answering: of the
stages that a record holds as they were measured, of the others as the grid runs them. Without
passages nothing is encoded at high resolution, and V' makes no difference. Nothing is trained here.

Shape letters: n questions, G points of V', H points of K'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from skipqa.pipeline import Pipeline
from skipqa.training.pathway.answering import (
    Answered,
    Answering,
    Point,
    controller_inputs,
    each,
    flops_without_retrieval,
    question_key,
)
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.records import Records
from skipqa.types import Budget

TOKENS = (32, 128)
PASSAGES = (0, 2, 6, 16)
USUAL = (0, 2)  # the point of the grid that is nearest to the usual budget


@dataclass(frozen=True, slots=True)
class BudgetGrid(Answered):
    """Each question at each point of the grid: `value` and `giga` are [n, G, H]."""

    passages: tuple[int, ...] = PASSAGES

    @property
    def gain(self) -> Tensor:
        """[n]: the score of the usual budget less that of no retrieval."""
        tokens, passages = USUAL
        return self.value[:, tokens, passages] - self.value[:, tokens, 0]

    def looked_up(self) -> BudgetGrid:
        """Without the points of no retrieval."""
        value, giga = self.value[:, :, 1:], self.giga[:, :, 1:]
        return replace(self, value=value, giga=giga, passages=self.passages[1:])

    def at(self, tokens_n: Tensor, passages_n: Tensor) -> tuple[Tensor, Tensor]:
        """Value and cost [n], linear between grid points."""
        places = _place(tokens_n, TOKENS), _place(passages_n, self.passages)
        return _between(self.value, *places), _between(self.giga, *places)

    def around(self, tokens_n: Tensor, passages_n: Tensor, width: float) -> tuple[Tensor, Tensor]:
        """Value and cost [n], the mean over grid points, the nearer the more."""
        row_nG = _nearness(_place(tokens_n, TOKENS), len(TOKENS), width)
        column_nH = _nearness(_place(passages_n, self.passages), len(self.passages), width)
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
    closed_flops = flops_without_retrieval(context.pipeline)
    found = torch.tensor(context.spread(answers, rows, "trying budgets", closed_flops))
    value, giga = found.reshape(len(rows), len(TOKENS), len(PASSAGES), 2).unbind(-1)
    sources = tuple(context.records.about[i]["source"] for i in rows)
    return BudgetGrid(value, giga, *controller_inputs(context.records, rows), sources)


@torch.inference_mode()
def answers(pipeline: Pipeline, records: Records, closed_flops: int) -> list[list[list[Point]]]:
    """For each question, V' and K': the score of the answer, and the FLOPs in units of 1e9."""
    return [_points(one, closed_flops) for one in each(pipeline, records)]


def _points(one: Answering, closed_flops: int) -> list[list[Point]]:
    closed = one.closed(closed_flops)
    found = []
    for tokens in TOKENS:
        state, before = one.retrieved(Budget(min(tokens, one.num_tokens), PASSAGES[-1]))
        looked_up = [one.answered(state, count, before) for count in PASSAGES[1:]]
        found.append([closed, *looked_up])
    return found


@torch.inference_mode()
def scores_without(
    pipeline: Pipeline, records: Records, skipped: Mapping[str, tuple[str, ...]]
) -> list[float]:
    """Of each question at the usual budget, without the indexes that are `skipped`, by question."""
    tokens, passages = TOKENS[USUAL[0]], PASSAGES[USUAL[1]]
    found = []
    for one in each(pipeline, records):
        without = skipped[question_key(records, one.i)]
        budget = Budget(min(tokens, one.num_tokens), passages, skipped_indexes=without)
        state, _ = one.retrieved(budget)
        score, _ = one.answered(state, passages, 0)
        found.append(score)
    return found
