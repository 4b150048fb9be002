"""The settings of stage V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from skipqa.config import Between, Count, Fraction, NonNegative, Weight
from skipqa.training.loop import Decay, LearningRate

Variant = Literal["A", "B"]


@dataclass(frozen=True, slots=True)
class BudgetTraining:
    steps: Count = 600  # at most
    lr: LearningRate = 1e-3
    warmup: NonNegative = 20
    weight_decay: Decay = 0.05
    variant: Variant = "A"  # of the one that may ship; both are trained and compared
    hidden: Count = 32
    dropout: Fraction = 0.3  # of what it decides by, while training
    no_draft: Fraction = 0.1  # how often it has to decide without a draft, while training
    price: Annotated[float, Between(0.0, 10.0)] = 0.1  # lambda_2, of the whole range of costs
    auxiliary: Weight = 0.3  # on the loss of targets that only help to learn
    questions: Count = 1_000  # of each data set and split, at most
    folds: Annotated[int, Between(2, 20)] = 5
    # What OK-VQA's held-out questions may cost, relative to no retrieval
    most_flops: Annotated[float, Between(1.0, 100.0)] = 1.25
    source_recall: Fraction = 0.98  # of useful indexes that are searched
