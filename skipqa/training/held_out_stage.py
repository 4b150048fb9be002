"""Stages that fit settings of answering on held-out questions, all of which go the full path.

Enters: components, and questions on photos that nothing was trained on. Leaves: the components with
the fitted settings in their `settings.toml`, and what was measured. How the settings follow from
the answers is the subclass's.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from skipqa.components import SETTINGS, change_settings
from skipqa.config import Config
from skipqa.data.held_out import Split
from skipqa.training.answered import Answered, Asked, answer_all, sample
from skipqa.training.export import copy_components
from skipqa.training.pipelines import Source, open_workers
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, Metrics, TrainingStage
from skipqa.training.stage1 import mixture


class HeldOutSettings(Protocol):
    @property
    def workers(self) -> int:
        """Processes; 0: as many as there are cores."""

    def counts(self, split: Split) -> dict[str, int]:
        """Questions of each source."""


S = TypeVar("S", bound=HeldOutSettings)


@dataclass(frozen=True, slots=True)
class Fitted:
    settings: Mapping[str, Mapping[str, Any]]  # by group
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class HeldOutStage(TrainingStage, Generic[S]):
    """Its one part is named as the stage."""

    @abstractmethod
    def source(self, inputs: Inputs) -> Source:
        """The pipeline that answers."""

    def draw(self, mixed: mixture.Mixture, settings: S, seed: int) -> list[Asked]:
        """The questions to answer."""
        return sample(mixed, "held-out", settings.counts("held-out"), seed)

    @abstractmethod
    def fit(
        self, asked: Sequence[Asked], answered: Answered, config: Config, settings: S
    ) -> Fitted: ...

    def run(self, inputs: Inputs, settings: Any, run: Run) -> Metrics:
        data, source = inputs.require_data(self.name), self.source(inputs)
        start = source.folder  # before anything is read: there has to be one
        mixed = mixture.read(data, inputs.pocket_kb, inputs.limit)
        run.claim(
            {
                "stage": self.name,
                "seed": run.seed,
                "limit": inputs.limit,
                "data": mixed.fingerprint(),
                **source.fingerprint(),
                "settings": dataclasses.asdict(settings),
            }
        )
        if self.name not in run.metrics():
            copy_components(start, run.folder)
            asked = self.draw(mixed, settings, run.seed)
            with open_workers(source, settings.workers or None) as workers:
                answered = answer_all(asked, workers, run, self.name)
            fitted = self.fit(asked, answered, source.config, settings)
            change_settings(run.folder / SETTINGS, **fitted.settings)
            run.finish(self.name, fitted.metrics)
        run.forget_states()
        return run.metrics()
