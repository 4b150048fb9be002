"""The settings of the stage `reader`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from skipqa.config import Count, Fraction, NonNegative, Weight
from skipqa.errors import UserError
from skipqa.nn.lora import LoraConfig
from skipqa.training.loop import Decay, Optimisation, steps_for
from skipqa.training.stage1.inputs import Stage1Settings
from skipqa.training.stage1.reader import ReaderTraining
from skipqa.training.stage1.reading import FORMS

PART = "reader"
FOCUS = f"{PART}/focus"
DENSE_PART = "dense_reader"  # of the dense baseline alone
STAGE1 = Stage1Settings()


class Phase(NamedTuple):
    rows: list[Tensor]  # of the prompts, in groups
    optimisation: Optimisation


@dataclass(frozen=True, slots=True)
class ReaderSchedule(ReaderTraining):
    epochs: Weight = 1.0
    focus_epochs: Weight = 1.0
    batch: Count = 32
    focus_lr: Weight = 1e-4
    steps: NonNegative = 0  # on the mixture; 0: as its epochs have
    warmup: NonNegative = 100
    weight_decay: Decay = 0.05
    # Gradient checkpointing: half as many FLOPs again, a tenth of the memory
    recompute: bool = True
    bfloat16: bool = False  # on a CPU, too, where float32 is more exact and several times slower

    def _optimisation(self, steps: int, lr: float) -> Optimisation:
        return Optimisation(steps, lr, self.warmup, self.weight_decay)

    def phases(self, groups: Mapping[str, Tensor]) -> dict[str, Phase]:
        """By name: the mixture, if there is to be any of it, then knowledge questions alone."""
        mixed, focused = self.mixed(groups), self.focused(groups)
        found: dict[str, Phase] = {}
        if self.epochs or self.steps:
            steps = self.steps or steps_for(self.epochs, mixed, self.batch)
            found[PART] = Phase(mixed, self._optimisation(steps, self.lr))
        if self.focus_epochs:
            steps = steps_for(self.focus_epochs, focused, self.batch)
            found[FOCUS] = Phase(focused, self._optimisation(steps, self.focus_lr))
        return found


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    common: NonNegative = STAGE1.common  # as in stage I
    notes: NonNegative = STAGE1.notes
    words: Count = STAGE1.words
    scored: Count = 400  # questions of each group, at most, but for those it chooses by
    # For a machine on which photos take long: trained on are then OK-VQA's questions and at most so
    # many of each other source; validation sets, except questions about unseen entities, are left
    # out, and so are photos that no question is about. 0: all
    questions: NonNegative = 0
    # How far a reader that is trained further goes from what it was to what was trained
    interpolation: Fraction = 0.5
    # How often a prompt has the sixteen passages of a dense system. At 1 the file is a reader of
    # that baseline alone, trained on questions that may need knowledge, as long as `focus_epochs`
    # says and with whole passages, as it reads them
    many: Fraction = FORMS["many"]
    train: ReaderSchedule = field(default_factory=ReaderSchedule)
    lora: LoraConfig = field(default_factory=LoraConfig)

    @property
    def part(self) -> str:
        return DENSE_PART if self.many == 1 else PART

    @property
    def schedule(self) -> ReaderSchedule:
        if self.part == PART:
            return self.train
        return replace(self.train, epochs=0.0, steps=0)

    def check(self) -> None:
        """Before anything is read or written."""
        schedule = self.schedule
        if not (schedule.epochs or schedule.steps or schedule.focus_epochs):
            mixture = "train.epochs or " if self.part == PART else ""
            raise UserError(f"nothing is trained: set {mixture}train.focus_epochs")

    def as_stage1(self) -> Stage1Settings:
        """For the parts of stage I that prompts are made with."""
        return Stage1Settings(
            common=self.common, notes=self.notes, words=self.words, scored=self.scored
        )
