"""The confidence of answers: logistic curves fitted on held-out questions through the pipeline.

Enters: components with their threshold for drafts, held-out questions of OK-VQA, COCO and, where
there is one, Pocket-KB. Leaves: the components with `[confidence]` in their `settings.toml`: one
curve for drafts, over the drafter's log-odds, and one for answers of the full path (features in
`skipqa/confidence.py`). Targets are soft scores, so a curve predicts the expected score.
`benchmarks/confidence.py` measures calibration on validation questions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.confidence import answer_features, draft_features, logistic
from skipqa.config import ConfidenceConfig, Config, Count, NonNegative, Weight
from skipqa.data.held_out import Split
from skipqa.training.answered import Answered, Asked
from skipqa.training.fast_path import PERCEPTUAL
from skipqa.training.held_out_stage import Fitted, HeldOutStage
from skipqa.training.pipelines import Source
from skipqa.training.stage import Inputs, Metrics

BINS = 10
Examples = tuple[list[tuple[float, ...]], list[float]]  # features, and the scores to predict


@dataclass(frozen=True, slots=True)
class ConfidenceSettings:
    questions: Count = 480  # of OK-VQA, and of Pocket-KB half as many
    perceptual_ratio: Count = 4  # one perceptual question for so many of OK-VQA's
    ridge: Weight = 1e-3  # L2 penalty on the weights, not on the bias
    workers: NonNegative = 0  # processes; 0: as many as there are cores

    def counts(self, split: Split) -> dict[str, int]:
        return {
            "okvqa": self.questions,
            PERCEPTUAL[split]: self.questions // self.perceptual_ratio,
            "pocket-kb": self.questions // 2,
        }


@dataclass(frozen=True, slots=True)
class ConfidenceStage(HeldOutStage[ConfidenceSettings]):
    def source(self, inputs: Inputs) -> Source:
        return Source(inputs.preset, inputs.components, inputs.index)

    def fit(
        self,
        asked: Sequence[Asked],
        answered: Answered,
        config: Config,
        settings: ConfidenceSettings,
    ) -> Fitted:
        threshold = config.draft.threshold
        curves = fit_curves(answered, threshold, settings.ridge)
        metrics = calibration(answered, threshold, curves)
        return Fitted({"confidence": dataclasses.asdict(curves)}, metrics)


STAGE = ConfidenceStage("confidence", ConfidenceSettings(), of_decoder=True)


def fit_curves(answered: Answered, threshold: float, ridge: float) -> ConfidenceConfig:
    drafted, looked_up = examples(answered, threshold)
    return ConfidenceConfig(fit_curve(*drafted, ridge), fit_curve(*looked_up, ridge))


def examples(answered: Answered, threshold: float) -> tuple[Examples, Examples]:
    """Of the drafts above the threshold, and of the full answers to all other questions."""
    drafted: Examples = ([], [])
    looked_up: Examples = ([], [])
    for confidence, draft, full, log_prob, grounded in answered.rows():
        if confidence > threshold:
            drafted[0].append(draft_features(confidence))
            drafted[1].append(draft)
        elif not math.isnan(log_prob):  # the reader measured it
            looked_up[0].append(answer_features(log_prob, bool(grounded), confidence))
            looked_up[1].append(full)
    return drafted, looked_up


def fit_curve(
    features: Sequence[tuple[float, ...]], scores: Sequence[float], ridge: float
) -> tuple[float, ...]:
    """Logistic regression on soft targets: convex, so L-BFGS finds the one minimum."""
    if not features:
        return ()
    inputs = torch.tensor(features, dtype=torch.float64)
    targets = torch.tensor(scores, dtype=torch.float64)
    bias = torch.zeros((), dtype=torch.float64, requires_grad=True)
    weights = torch.zeros(inputs.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [bias, weights], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        logits = inputs @ weights + bias
        value = F.binary_cross_entropy_with_logits(logits, targets)
        value = value + ridge * weights.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return tuple(round(float(value), 4) for value in (bias.detach(), *weights.tolist()))


def calibration(answered: Answered, threshold: float, curves: ConfidenceConfig) -> Metrics:
    """By route: mean confidence next to the mean score, and the expected calibration error."""
    drafted, looked_up = examples(answered, threshold)
    return {
        "drafted": _calibrated(*drafted, curves.drafted),
        "looked_up": _calibrated(*looked_up, curves.looked_up),
    }


def _calibrated(
    features: Sequence[tuple[float, ...]], scores: Sequence[float], curve: Sequence[float]
) -> Metrics:
    """The expected calibration error over bins of equal counts (Naeini et al., 2015)."""
    if not features or not curve:
        return {"questions": len(features)}
    confidence = torch.tensor([logistic(curve, x) for x in features])
    target = torch.tensor(scores)
    order = confidence.argsort()
    bins = [some for some in order.tensor_split(BINS) if len(some)]
    reliability = [
        {
            "questions": len(some),
            "confidence": float(confidence[some].mean()),
            "score": float(target[some].mean()),
        }
        for some in bins
    ]
    error = sum(b["questions"] * abs(b["confidence"] - b["score"]) for b in reliability)
    return {
        "questions": len(features),
        "curve": list(curve),
        "confidence": float(confidence.mean()),
        "score": float(target.mean()),
        "ece": error / len(features),
        "reliability": reliability,
    }
