"""Stage III, RCSR: the region query learns what to ask besides the names of what a region shows.

Enters: gathered records, the indexes they were retrieved from. Leaves: a region query, sparse or
dense, and how it compares on held-out questions with what asks today: gold passages among the first
few, of single things, of crowded photos, and of things that nothing was trained on. It ships if it
finds at least as many, and no fewer of the unseen things.

The loss is the gold passage among those of the batch (`region_query.py`); where the reader's gains
are known they are soft targets. SPLADE's regulariser rises over the first third of the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from skipqa.config import Count, NonNegative, Weight
from skipqa.nn.region_query import RegionQueryConfig, build_region_query
from skipqa.pipeline import Pipeline
from skipqa.training.loop import Decay, LearningRate, Loss, Optimisation
from skipqa.training.pathway import gains
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.records import Records
from skipqa.training.pathway.region_query import AnyRegionQuery, QueryInputs, prepare
from skipqa.training.pathway.saliency_quality import AT, RECALL
from skipqa.training.pathway.stage import PathwayPart
from skipqa.training.sampling import inverse_frequency
from skipqa.training.stage import Metrics
from skipqa.types import Budget

UNSEEN = "unseen"  # its questions are all of val; they decide whether anything is lost


@dataclass(frozen=True, slots=True)
class RegionQueryTraining:
    steps: Count = 250
    lr: LearningRate = 1e-3
    warmup: NonNegative = 50
    batch: Count = 32
    weight_decay: Decay = 0.05
    variant: Literal["A", "B"] = "A"
    hidden: Count = 64
    max_terms: Count = 128
    sparsity: Weight = 1e-2
    gains_on_cpu: NonNegative = 0  # questions whose gains are measured where there is no GPU


class Stage3Training(Protocol):
    """The settings of the whole stage, which has another part."""

    @property
    def region_query(self) -> RegionQueryTraining: ...


class RegionQueryPart(PathwayPart[Stage3Training, QueryInputs, AnyRegionQuery]):
    name = "region_query"

    def prepare(self, context: TrainingContext, settings: Stage3Training) -> QueryInputs:
        train = settings.region_query
        known = gains.load_or_measure(context, train.gains_on_cpu)
        return prepare(context, context.rows("train", gold=True), train.variant, known)

    def build(self, context: TrainingContext, settings: Stage3Training) -> AnyRegionQuery:
        """What an earlier run trained, if it is of this kind, or a new one."""
        train, backbone = settings.region_query, context.pipeline.backbone
        config = RegionQueryConfig(
            vision_width=backbone.widths.vision,
            concepts=len(backbone.concepts) - backbone.concepts.from_photos,
            question_width=backbone.widths.text,
            variant=train.variant,
            hidden=train.hidden,
            max_terms=train.max_terms,
            retrieval_width=backbone.widths.text,
        )
        learned = context.learned.region_query
        if learned is not None and learned.config == config:
            return learned.requires_grad_(True)
        torch.manual_seed(context.run.seed)
        return build_region_query(config)

    def loss(
        self,
        context: TrainingContext,
        settings: Stage3Training,
        data: QueryInputs,
        model: AnyRegionQuery,
    ) -> Loss:
        train = settings.region_query
        rows = list(data.asked)
        draw = inverse_frequency(rows, context.categories(rows), train.batch, context.run.seed)

        def loss(step: int) -> Tensor:
            sparsity = train.sparsity * min(1.0, 3 * step / train.steps) ** 2
            return data.loss(model, draw(step).tolist(), sparsity)

        return loss

    def optimisation(self, settings: Stage3Training) -> Optimisation:
        train = settings.region_query
        return Optimisation(train.steps, train.lr, train.warmup, train.weight_decay)

    def compare(
        self,
        context: TrainingContext,
        settings: Stage3Training,
        data: QueryInputs,
        model: AnyRegionQuery,
    ) -> Metrics:
        return compare_queries(context, model)

    def ships(self, context: TrainingContext, compared: Metrics) -> dict[str, bool]:
        """Over all held-out questions, and over those about unseen things."""
        unseen, seen = compared.get(UNSEEN, {}), compared["held-out"]
        return {self.name: is_as_good(seen.values()) and is_as_good(unseen.values())}

    def components(
        self, settings: Stage3Training, model: AnyRegionQuery
    ) -> Mapping[str, nn.Module]:
        return {self.name: model}


def compare_queries(context: TrainingContext, query: AnyRegionQuery) -> Metrics:
    """By split and source, through the stage that answers: the trained query, and what asks today,
    trained or training-free."""
    records = context.records
    unseen = [i for i in records.select("val", UNSEEN) if records.about[i]["gold_rows"]]
    groups = {"held-out": context.rows("held-out", gold=True), UNSEEN: unseen}
    today = context.pipeline.components.region_query
    compared: Metrics = {}
    for split, rows in groups.items():
        found = context.spread(find_gold, rows, "asking", (query, today))
        by_source: dict[str, list[tuple[bool, ...]]] = {}
        for i, pair in zip(rows, found, strict=True):
            by_source.setdefault(records.about[i]["source"], []).append(pair)
        compared[split] = {
            source: {
                "questions": len(pairs),
                "trained": {RECALL: sum(pair[0] for pair in pairs) / len(pairs)},
                "before": {RECALL: sum(pair[1] for pair in pairs) / len(pairs)},
            }
            for source, pairs in by_source.items()
        }
    return compared


def find_gold(
    pipeline: Pipeline, records: Records, queries: Sequence[AnyRegionQuery | None]
) -> list[tuple[bool, ...]]:
    """Of each question and query: is a gold passage among the first few? Regions are those of
    gathering, zoom included."""
    asking = [pipeline.with_components(region_query=query) for query in queries]
    return [tuple(_finds(one, records, i) for one in asking) for i in range(len(records))]


def _finds(pipeline: Pipeline, records: Records, i: int) -> bool:
    state = records.after_retrieve(i, len(pipeline.backbone.concepts))
    state = state.add(budget=Budget(len(state.kept.positions), AT))
    found = pipeline.run(state, start="retrieve", stop="retrieve").retrieved.passages
    return not {one.passage.id for one in found}.isdisjoint(records.about[i]["gold"])


def is_as_good(by_source: Iterable[Mapping[str, Any]]) -> bool:
    """Over all of their questions; of none, it is."""
    gained = sum(
        one["questions"] * (one["trained"][RECALL] - one["before"][RECALL]) for one in by_source
    )
    return gained > -0.5  # of a question: sums of fractions are not exact
