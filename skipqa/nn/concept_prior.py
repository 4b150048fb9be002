"""RCSR: a prior over visual concepts, given the question.

Enters: the pooled question [..., D] and the embeddings of all concepts [C, D]. Leaves: how much
likelier than chance it is that the question is about each concept, [..., C]. Bayes' rule combines
it with a region's evidence: "this breed" is about the dog, however certain the region is of the
sofa. It never sees the image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from skipqa.types import ConceptPrior


@dataclass(frozen=True, slots=True)
class ConceptPriorConfig:
    width: int = 384
    hidden: int = 32
    floor: float = 0.03  # probability mass spread over all concepts: a question may be about any
    trust: float = 0.5  # exponent on the prior, which was learned from few kinds of questions


class ConceptPriorHead(nn.Module):
    def __init__(self, config: ConceptPriorConfig) -> None:
        super().__init__()
        self.config = config
        self.of_question = nn.Linear(config.width, config.hidden, bias=False)
        self.of_concept = nn.Linear(config.width, config.hidden, bias=False)

    def forward(self, question: Tensor, concepts_CD: Tensor) -> Tensor:
        """Logits [..., C]; all equal where the question says nothing about the concept."""
        return self.of_question(question) @ self.of_concept(concepts_CD).T

    @torch.inference_mode()
    def prior(self, question_D: Tensor, projected_CH: Tensor) -> ConceptPrior:
        """For one question; `projected_CH` is `of_concept` of all concepts, the same every time."""
        logits_C = self.of_question(question_D) @ projected_CH.T
        ratio_C = logits_C.softmax(-1) * len(projected_CH)  # to a uniform prior
        floor = self.config.floor
        information = (ratio_C * ratio_C.clamp(min=1e-9).log()).mean()
        weights_C = (floor + (1 - floor) * ratio_C) ** self.config.trust
        return ConceptPrior(weights_C, max(0.0, float(information)))


def flops(config: ConceptPriorConfig, num_concepts: int) -> int:
    """FLOPs for one question once the concepts are projected; a multiply-add counts as two."""
    return 2 * config.hidden * (config.width + num_concepts)
