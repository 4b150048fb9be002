"""RCSR: a prior over visual concepts, given the question.

Enters: the pooled question [..., D] and the embeddings of all concepts [C, D]. Leaves: how much
likelier than usual it is that the question is about each concept, [..., C]. Bayes' rule combines
it with a region's evidence: "this breed" is about the dog, however certain the region is of the
sofa. It never sees the image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from skipqa.nn.span import SpanConfig, SpanHead
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
        # Instead of a question, one that may be about anything: some things are asked about more
        self.anything = nn.Parameter(torch.zeros(config.hidden))
        self.span = SpanHead(SpanConfig(config.width))  # which words the prior is read from

    def forward(self, question: Tensor, concepts_CD: Tensor) -> Tensor:
        """Logits [..., C]; the base rates where the question says nothing about the concept."""
        return self.project(question) @ self.of_concept(concepts_CD).T

    def project(self, question: Tensor) -> Tensor:
        return self.of_question(question) + self.anything

    def base_rates(self, concepts_CD: Tensor) -> Tensor:
        """Logits [C] of how often each concept is asked about."""
        return self.anything @ self.of_concept(concepts_CD).T

    @torch.inference_mode()
    def prior(self, question_D: Tensor, projected_CH: Tensor) -> ConceptPrior:
        """For one question; `projected_CH` is `of_concept` of all concepts, the same every time."""
        log_prob_C, log_base_C = self._log_probs(question_D, projected_CH)
        information = (log_prob_C.exp() * (log_prob_C - log_base_C)).sum()
        weights_C = self._weights(log_prob_C, log_base_C)
        return ConceptPrior(weights_C, max(0.0, float(information)))

    @torch.inference_mode()
    def weights(self, questions_QD: Tensor, projected_CH: Tensor) -> Tensor:
        """[Q, C]: the weights of `prior` for many questions."""
        return self._weights(*self._log_probs(questions_QD, projected_CH))

    def _log_probs(self, question: Tensor, projected_CH: Tensor) -> tuple[Tensor, Tensor]:
        """Given the question [..., C], and the base rates [C]."""
        log_prob = (self.project(question) @ projected_CH.T).log_softmax(-1)
        return log_prob, (self.anything @ projected_CH.T).log_softmax(-1)

    def _weights(self, log_prob: Tensor, log_base: Tensor) -> Tensor:
        """Evidence has base rates of its own: what counts is how much the question changes them."""
        return (self._with_floor(log_prob) / self._with_floor(log_base)) ** self.config.trust

    def _with_floor(self, log_prob: Tensor) -> Tensor:
        """Times the number of concepts, so that a uniform distribution is 1."""
        floor = self.config.floor
        return floor + (1 - floor) * log_prob.exp() * log_prob.shape[-1]


def flops(config: ConceptPriorConfig, num_concepts: int) -> int:
    """FLOPs for one question once the concepts are projected; a multiply-add counts as two."""
    return 2 * config.hidden * (config.width + 2 * num_concepts)
