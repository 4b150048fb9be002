"""RCSR: what a question lets one expect to see, before looking.

Enters: the pooled question [..., D] and the embeddings of the concepts that a picture may show
[C, D]. Leaves: how much likelier than by chance the question is about each, [..., C]. By Bayes'
rule a region's evidence times this says what in the region the question is about: "this breed"
asks for a dog, however sure the region is of the sofa. It knows no picture.
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
    # A question may be about anything: this share of the expectation is spread over all concepts.
    floor: float = 0.03
    # The power to which the expectation is taken: it was learned from few kinds of questions.
    trust: float = 0.5


class ConceptPriorHead(nn.Module):
    def __init__(self, config: ConceptPriorConfig) -> None:
        super().__init__()
        self.config = config
        self.of_question = nn.Linear(config.width, config.hidden, bias=False)
        self.of_concept = nn.Linear(config.width, config.hidden, bias=False)
        self._known: tuple[Tensor, Tensor] | None = None  # concepts, and what `of_concept` gave

    def forward(self, question: Tensor, concepts_CD: Tensor) -> Tensor:
        """Logits [..., C]; equal ones where nothing particular is expected."""
        return self.of_question(question) @ self.of_concept(concepts_CD).T

    @torch.inference_mode()
    def prior(self, question_D: Tensor, concepts_CD: Tensor) -> ConceptPrior:
        """Of one question, by what was learned: the concepts are those of the question before, and
        are not worked on again. The nats are the shares' divergence from equal ones."""
        if self._known is None or self._known[0] is not concepts_CD:
            self._known = concepts_CD, self.of_concept(concepts_CD)
        logits_C = self.of_question(question_D) @ self._known[1].T
        likelier_C = logits_C.softmax(-1) * len(concepts_CD)
        factors_C = self.config.floor + (1 - self.config.floor) * likelier_C
        information = (likelier_C * likelier_C.clamp(min=1e-9).log()).mean()
        return ConceptPrior(factors_C**self.config.trust, max(0.0, float(information)))


def flops(config: ConceptPriorConfig, num_concepts: int) -> int:
    """FLOPs of one question after the first, a multiply and an add counted as two."""
    return 2 * config.hidden * (config.width + num_concepts)
