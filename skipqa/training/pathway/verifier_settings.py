"""The settings of stage IV."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch

from skipqa.config import Between, Count, Fraction, NonNegative
from skipqa.training.loop import Decay
from skipqa.training.pathway import gains


@dataclass(frozen=True, slots=True)
class PairTraining:
    steps: Count = 1_500
    steps_on_cpu: NonNegative = 0
    lr: Annotated[float, Between(1e-7, 1.0)] = 1e-3  # of the verifier
    encoder_lr_scale: Fraction = 0.1
    warmup: NonNegative = 60
    batch: Count = 48  # questions, of up to 16 passages each
    weight_decay: Decay = 0.05
    hidden: Count = 128
    rivals: NonNegative = 8
    dropout: Fraction = 0.1
    ranks: Annotated[tuple[int, ...], Between(1, 1_000)] = (24, 48)
    max_loss: Fraction = 0.003

    def steps_here(self) -> int:
        return self.steps if torch.cuda.is_available() else self.steps_on_cpu


@dataclass(frozen=True, slots=True)
class VerifierTraining:
    steps: Count = 2_000
    lr: Annotated[float, Between(1e-7, 1.0)] = 2e-3
    warmup: NonNegative = 100
    batch: Count = 64  # questions, of up to 16 passages each
    weight_decay: Decay = 0.05
    hidden: Count = 128
    rivals: NonNegative = 8
    dropout: Fraction = 0.3
    oracle_questions: NonNegative = gains.ON_CPU  # whose gains a CPU measures; a GPU does all
    pairs: PairTraining = field(default_factory=PairTraining)
