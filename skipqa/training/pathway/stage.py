"""The template of stages II to VI: train, compare with what answers today, export if it ships.

Enters: gathered records and the components of the stage before. Leaves: the run's folder as
`context.py` describes it, and in `metrics.json` what was measured. A stage is a `PathwayPart`, or
several in a row; a part says how to build its model, its loss, how to compare it and what has to
hold for it to ship. The order of these steps is written here, once.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from torch import nn

from skipqa.training.loop import Loss, Optimisation, fit
from skipqa.training.pathway import gather
from skipqa.training.pathway.context import TRAINED, Gathering, TrainingContext, begin
from skipqa.training.pipelines import Source, components_digest
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, Metrics, TrainingStage
from skipqa.training.stage1.pocket_kb import HeldOut

S = TypeVar("S")  # settings
D = TypeVar("D")  # what a loss and a comparison read besides the records
M = TypeVar("M")  # a model, or several that are trained together
QUESTIONS_SEED = 2026  # every run draws the same questions, so that stages share their records


class PathwayPart(ABC, Generic[S, D, M]):
    """Something that is trained on records, compared and exported as a whole."""

    name: ClassVar[str]  # its key in metrics.json, and the name of its losses

    @abstractmethod
    def prepare(self, context: TrainingContext, settings: S) -> D:
        """What is computed once from the records."""

    @abstractmethod
    def build(self, context: TrainingContext, settings: S) -> M: ...

    @abstractmethod
    def loss(self, context: TrainingContext, settings: S, data: D, model: M) -> Loss: ...

    @abstractmethod
    def optimisation(self, settings: S) -> Optimisation: ...

    @abstractmethod
    def compare(self, context: TrainingContext, settings: S, data: D, model: M) -> Metrics:
        """Trained and training-free on the same questions."""

    @abstractmethod
    def ships(self, context: TrainingContext, compared: Metrics) -> dict[str, bool]:
        """Which components are good enough to answer with."""

    @abstractmethod
    def components(self, settings: S, model: M) -> Mapping[str, nn.Module]:
        """The modules by the names of their files."""

    def chosen_settings(
        self, context: TrainingContext, compared: Metrics, ships: Mapping[str, bool]
    ) -> dict[str, dict[str, Any]]:
        """Settings of the pipeline that the comparison chose."""
        return {}

    def train(self, context: TrainingContext, settings: S, data: D) -> M:
        model = self.build(context, settings)
        assert isinstance(model, nn.Module)
        loss = self.loss(context, settings, data, model)
        return fit(self.name, model, loss, self.optimisation(settings), context.run)

    def export(
        self, context: TrainingContext, settings: S, model: M, ships: Mapping[str, bool]
    ) -> None:
        for name, module in self.components(settings, model).items():
            context.export(module, name, ships=ships.get(name, False))

    def run(self, context: TrainingContext, settings: S) -> None:
        """The template. A part that an earlier call finished is not trained again."""
        if self.name in context.run.metrics():
            return
        data = self.prepare(context, settings)
        model = self.train(context, settings, data)
        compared = self.compare(context, settings, data, model)
        ships = self.ships(context, compared)
        self.export(context, settings, model, ships)
        if chosen := self.chosen_settings(context, compared, ships):
            context.set(**chosen)
        [*others, last] = ships.values()
        context.run.finish(self.name, {"ships": ships if others else last, **compared})


@dataclass(frozen=True, slots=True)
class PathwaySettings:
    """`train` is the stage's own group."""

    train: Any
    records: Gathering = field(default_factory=Gathering)


@dataclass(frozen=True, slots=True)
class PathwayStage(TrainingStage):
    settings: PathwaySettings
    parts: tuple[PathwayPart[Any, Any, Any], ...]

    def run(self, inputs: Inputs, settings: PathwaySettings, run: Run) -> Metrics:
        pocket_kb, data = inputs.require_pocket_kb(self.name), inputs.require_data(self.name)
        source = Source(inputs.preset, inputs.components, inputs.index)
        run.claim(
            {
                "stage": self.name,
                "seed": run.seed,
                "limit": inputs.limit,
                **source.fingerprint(),
                TRAINED: components_digest(source.start and source.start / TRAINED),
                "settings": dataclasses.asdict(settings),
            }
        )
        gathering = settings.records
        if inputs.limit is not None:
            gathering = gathering.at_most(inputs.limit)
        rows = gather.questions(data, pocket_kb, gathering.counts(), QUESTIONS_SEED)
        folder = inputs.records or run.folder.parent / "records"
        with begin(source, rows, gathering, folder, run) as context:
            context = replace(context, unseen_passages=HeldOut.of(pocket_kb).passages)
            for part in self.parts:
                part.run(context, settings.train)
        run.forget_states()
        return run.metrics()
