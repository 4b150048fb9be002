"""The probability that an answer is right: a logistic curve per route, fitted on held-out data.

Enters: a draft, or a decoded answer. Leaves: a probability, or None where nothing was fitted.
`training/confidence.py` fits the curves and writes them into the checkpoint's settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from skipqa.config import ConfidenceConfig
from skipqa.types import Decoded, Draft

EDGE = 1e-4  # a probability of 0 or 1 has no log-odds


def of_draft(draft: Draft, config: ConfidenceConfig) -> float | None:
    return logistic(config.drafted, draft_features(draft.confidence)) if config.drafted else None


def of_answer(answer: Decoded, draft: Draft, config: ConfidenceConfig) -> float | None:
    """None also where the reader did not measure the answer's log-probability."""
    if answer.log_prob is None or not config.looked_up:
        return None
    features = answer_features(answer.log_prob, bool(answer.grounded), draft.confidence)
    return logistic(config.looked_up, features)


def draft_features(confidence: float) -> tuple[float, ...]:
    """The log-odds of the drafter's own confidence."""
    prob = min(max(confidence, EDGE), 1 - EDGE)
    return (math.log(prob / (1 - prob)),)


def answer_features(log_prob: float, grounded: bool, draft_confidence: float) -> tuple[float, ...]:
    """The decoder's log-probability, whether a passage says so, and the drafter's log-odds: an
    image that the drafter reads well is also described well to the decoder."""
    return (log_prob, float(grounded), *draft_features(draft_confidence))


def logistic(curve: Sequence[float], features: Sequence[float]) -> float:
    """`curve` is the bias and one weight per feature."""
    bias, *weights = curve
    logit = bias + sum(w * x for w, x in zip(weights, features, strict=True))
    return 0.5 * (1 + math.tanh(logit / 2))  # the sigmoid, without overflow
