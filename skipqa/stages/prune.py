"""prune: keep the V' tokens that matter to the question (QVS).

A trained scorer gives s_i from the token and the question. Without one, s_i = sum_c p_ic r_c:
the evidence that token i shows concept c, times how much c has to do with the question. r_c
grows with the likeness of their embeddings, jumps where the question names the concept or a
kind of it ("drink" names espresso) or lets one expect it, and leans towards what the whole picture
shows, which decides when the question names nothing ("What is this?").
"""

from __future__ import annotations

import torch
from torch import Tensor

from skipqa.backbones.concepts import Concepts
from skipqa.config import PruneConfig
from skipqa.language import base_forms
from skipqa.nn import saliency
from skipqa.nn.saliency import Saliency
from skipqa.trace import StageRecord
from skipqa.types import Budget, KeptTokens, Question, VisualTokens


def prune(
    tokens: VisualTokens,
    question: Question,
    allowed: Budget,
    concepts: Concepts,
    config: PruneConfig,
    record: StageRecord,
    learned: Saliency | None = None,
) -> KeptTokens:
    if learned is None:
        relevance_C = concept_relevance(question, concepts)
        relevance_C = relevance_C + config.overview_weight * tokens.overview
        if question.concept_prior is not None:
            relevance_C = (
                relevance_C + question.concept_prior.weights / question.concept_prior.weights.max()
            )
        saliency_V = tokens.evidence @ relevance_C
        num_concepts, width = concepts.embeddings.shape
        record.flops = 2 * num_concepts * (width + len(tokens))
    else:
        with torch.inference_mode():
            saliency_V = learned(tokens.meaning, question.embedding).sigmoid()
        record.flops = saliency.flops(learned.config, len(tokens))
    kept = KeptTokens(top_positions(saliency_V, allowed.tokens), saliency_V, tokens)
    record.kept, record.dropped = len(kept.positions), len(tokens) - len(kept.positions)
    how = "evidence for" if learned is None else "scored for"
    record.why = f"{how} {', '.join(question.words) or 'what the picture shows'}"
    record.result = kept
    return kept


def concept_relevance(question: Question, concepts: Concepts) -> Tensor:
    """[C] in [0, 2]: squared likeness of embeddings, plus 1 where the question names the kind."""
    likeness = (concepts.embeddings @ question.embedding).clamp(min=0)
    asked = {form for word in question.words for form in base_forms(word)}
    named = torch.zeros_like(likeness)
    named[[i for name in asked for i in concepts.called.get(name, ())]] = 1
    return likeness.square() + named


def top_positions(saliency_V: Tensor, count: int) -> Tensor:
    """Grid positions of the `count` most salient tokens, ascending; ties go to the first."""
    order = saliency_V.argsort(descending=True, stable=True)
    return order[:count].sort().values
