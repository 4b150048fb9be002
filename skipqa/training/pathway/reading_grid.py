"""What every way to read is worth: each question answered in all of them.

Enters: records and the pipeline. Leaves: the score of the answer and the FLOPs of every question in
every way, with everything else as set, and which questions the budget looks up at all. Nothing is
trained here.

Shape letters: n questions, R ways to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from skipqa import components
from skipqa.nn.budget import BudgetController
from skipqa.nn.reading_choice import WAYS
from skipqa.pipeline import Pipeline
from skipqa.stages.budget import may_abstain
from skipqa.training.pathway.answering import (
    Answered,
    Answering,
    Point,
    controller_inputs,
    each,
    flops_without_retrieval,
)
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.records import Records
from skipqa.types import Budget

NOTHING = WAYS.index("none")


def evaluate_ways(context: TrainingContext, rows: Sequence[int]) -> Answered:
    """By answering each question in each way, over all workers; `value` and `giga` are [n, R]."""
    closed_flops = flops_without_retrieval(context.pipeline)
    found = context.spread(answers_by_way, rows, "reading in every way", closed_flops)
    value, giga = torch.tensor(found).unbind(-1)
    sources = tuple(context.records.about[i]["source"] for i in rows)
    return Answered(value, giga, *controller_inputs(context.records, rows), sources)


@torch.inference_mode()
def answers_by_way(pipeline: Pipeline, records: Records, closed_flops: int) -> list[list[Point]]:
    """For each question and way: the score of the answer, and the FLOPs in units of 1e9."""
    return [_points(one, closed_flops) for one in each(pipeline, records)]


def _points(one: Answering, closed_flops: int) -> list[Point]:
    config = one.pipeline.config.budget
    tokens = config.kept_tokens(one.num_tokens)
    state, before = one.retrieved(Budget(tokens, config.passages, rho_r=config.rho_r))
    return [
        one.closed(closed_flops)
        if way == "none"
        else one.answered(
            state.add(budget=replace(state.budget, read_as=way)), config.passages, before
        )
        for way in WAYS
    ]


def looked_up(context: TrainingContext, rows: Sequence[int]) -> Tensor:
    """[n] bool: by the budget, whatever is read. A choice is made for these alone."""
    records, config = context.records, context.pipeline.config.budget
    if (controller := _controller(context)) is not None:
        num_tokens, most = int(records["meaning"].shape[1]), config.max_passages
        known = zip(*controller_inputs(records, rows), strict=True)
        budgets = [
            controller.decide(v, q, num_tokens, most, s[: controller.config.signals])
            for v, q, s in known
        ]
        return torch.tensor([budget.passages > 0 for budget in budgets])
    easy = config.easy if may_abstain(context.pipeline.parts) else 0.0
    drafts = (records.draft(i, {}) for i in rows)
    return torch.tensor([not one.candidates or one.abstain_prob >= easy for one in drafts])


def behind_gate(answered: Answered, looked_up_n: Tensor) -> Answered:
    """As answering has it: what is not looked up is answered without passages in any way."""
    value, giga = (
        torch.where(looked_up_n[:, None], table, table[:, NOTHING, None])
        for table in (answered.value, answered.giga)
    )
    return replace(answered, value=value, giga=giga)


def _controller(context: TrainingContext) -> BudgetController | None:
    """That answering will have: the one that this stage ships, else the one it began with."""
    folder = context.run.folder
    if not (folder / "budget.safetensors").is_file():
        return context.pipeline.components.budget
    return components.load(folder, preset=context.pipeline.config.preset).budget
