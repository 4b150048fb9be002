"""The probability that an answer is right: a logistic curve per route, fitted on held-out data.

Enters: a draft, or a decoded answer. Leaves: a probability, or None where nothing was fitted.
`training/fast_path.py` fits the curves and writes them into the checkpoint's settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from skipqa.config import ConfidenceConfig
from skipqa.types import Decoded, Draft

EDGE = 1e-4  # a probability of 0 or 1 has no log-odds


def of_draft(draft: Draft, config: ConfidenceConfig) -> float | None:
    return _logistic(config.drafted, draft_features(draft))


def of_answer(answer: Decoded, config: ConfidenceConfig) -> float | None:
    """None also where the reader did not measure the answer's log-probability."""
    if answer.log_prob is None:
        return None
    return _logistic(config.looked_up, answer_features(answer.log_prob, answer.grounded))


def draft_features(draft: Draft) -> tuple[float, ...]:
    """The log-odds of the drafter's own confidence."""
    prob = min(max(draft.confidence, EDGE), 1 - EDGE)
    return (math.log(prob / (1 - prob)),)


def answer_features(log_prob: float, grounded: bool | None) -> tuple[float, ...]:
    return log_prob, float(bool(grounded))


def _logistic(weights: Sequence[float], features: Sequence[float]) -> float | None:
    """`weights` are the bias and one weight per feature; none: not fitted."""
    if not weights:
        return None
    bias, *slopes = weights
    logit = bias + sum(w * x for w, x in zip(slopes, features, strict=True))
    return 0.5 * (1 + math.tanh(logit / 2))  # the sigmoid, without overflow
