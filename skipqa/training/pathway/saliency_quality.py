"""What pruning and region queries find: records replayed with other components.

Enters: how to replay (`Trial`), rows of the records. Leaves: recall of gold passages, and how much
of the object's box is kept. Nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skipqa.nn.region_query import DenseRegionQuery, SparseRegionQuery
from skipqa.nn.saliency import Saliency
from skipqa.pipeline import Pipeline
from skipqa.stages.regions import in_box
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.records import Records, replay, replaying
from skipqa.types import Budget

AT = 4  # recall is counted among so many passages
RECALL = f"recall@{AT}"


@dataclass(frozen=True, slots=True)
class Trial:
    """How records are replayed."""

    tokens: int
    saliency: Saliency | None
    query: SparseRegionQuery | DenseRegionQuery | None


def recall_and_boxes(
    context: TrainingContext, rows: Sequence[int], trials: Sequence[Trial]
) -> list[dict[str, float]]:
    """Of each trial, on the same questions."""
    found = context.spread(_try, rows, "pruning questions", trials)
    return [
        {
            RECALL: _mean([one[n][0] for one in found]),
            "box_kept": _mean([kept for one in found if (kept := one[n][1]) is not None]),
        }
        for n in range(len(trials))
    ]


def _try(
    pipeline: Pipeline, records: Records, trials: Sequence[Trial]
) -> list[list[tuple[bool, float | None]]]:
    """For each question and trial: is a gold passage found, how much of the box is kept?"""
    allowed = pipeline.config.budget.passages
    rule = replaying(pipeline, grounding=None)
    pipelines = [
        (rule.with_components(saliency=trial.saliency, region_query=trial.query), trial.tokens)
        for trial in trials
    ]
    return [
        [_find(one, records, i, Budget(tokens, allowed)) for one, tokens in pipelines]
        for i in range(len(records))
    ]


def _find(
    pipeline: Pipeline, records: Records, i: int, budget: Budget
) -> tuple[bool, float | None]:
    about = records.about[i]
    state, _ = replay(records, i, pipeline, budget)
    ids = {one.passage.id for one in state.retrieved.passages[:AT]}
    fraction = None
    if about["box"] is not None:
        inside = in_box(about["box"], records.grid)
        fraction = float(inside[state.kept.positions].sum() / inside.sum().clamp(min=1))
    return not ids.isdisjoint(about["gold"]), fraction


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
