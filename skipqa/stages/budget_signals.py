"""What is known of a question before its budget is set, as a few numbers between 0 and about 1.

Enters: the question, the image at low resolution, the draft. Leaves: the signals that a trained
controller may read; answering and the records that it is trained on compute them here. A draft that
is not known yet, as where it is made at the same time, has signals of 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from skipqa.stages.zoom import best_prob
from skipqa.types import Draft, Question, VisualTokens

OF_DRAFT = 4  # the first ones
NUM_SIGNALS = OF_DRAFT + 4
UNKNOWN_DRAFT = Draft("", 0.0, "not known yet")
LEAST_LOG_PROB = -8.0  # of a draft; what is less probable counts as this
MOST_INFORMATION = 8.0  # of a concept prior


def signals(question: Question, low_res: VisualTokens, draft: Draft) -> Tensor:
    """[NUM_SIGNALS]"""
    best, second = _log_probs(draft)
    prior = question.concept_prior
    information, sure = 0.0, float(low_res.overview.max())
    if prior is not None:
        information, sure = prior.information, best_prob(low_res.overview, prior)
    return torch.tensor(
        [
            draft.confidence,
            draft.abstain_prob,
            1 - best / LEAST_LOG_PROB,
            (best - second) / -LEAST_LOG_PROB,
            min(information, MOST_INFORMATION) / MOST_INFORMATION,
            float(question.span is not None),
            len(question.text.split()) / 10,
            sure,  # how sure the image is of what is asked about
        ]
    )


def _log_probs(draft: Draft) -> tuple[float, float]:
    """Of the best draft and of the second."""
    found = [max(LEAST_LOG_PROB, log_prob) for _, log_prob in draft.candidates[:2]]
    best, second, *_ = [*found, LEAST_LOG_PROB, LEAST_LOG_PROB]
    return best, second
