"""prune: keep the V' tokens that matter to the question (QVS).

Untrained, s_i = sum_c p_ic r_c: the probability that token i shows concept c, times the relevance
of c to the question. r_c grows with the similarity of their embeddings, jumps where the question
names the concept or a kind of it ("drink" names espresso) or the concept prior is high, and leans
towards what the whole image shows, which decides when the question names nothing ("What is this?").
Two dogs are alike to this rule. A trained grounding corrects it: it reads features, evidence and
places of all tokens together with the question's words, so it knows which dog is the left one. A
trained saliency scores each token by itself.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from skipqa.backbones.backbone import Backbone
from skipqa.backbones.concepts import Concepts
from skipqa.config import PruneConfig
from skipqa.language import all_forms
from skipqa.nn import grounding as attention
from skipqa.nn import saliency as network
from skipqa.nn.grounding import Grounding, Scene
from skipqa.nn.saliency import Saliency
from skipqa.stages import text_gate
from skipqa.stages.stage import Parts, check_concepts
from skipqa.stages.text_gate import TextGate, asked_likeness
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import ConceptPrior, KeptTokens, Question, VisualTokens

LEAST_SALIENCY = 1e-4  # of the rule, where its logarithm is taken


class TokenScorer(Protocol):
    def __call__(self, tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
        """The saliency of every token [V], at least 0, and its FLOPs."""

    def why(self, question: Question) -> str:
        """What the scores mean, for the trace."""


class ConceptScorer:
    """Training-free: evidence for concepts, weighted by their relevance to the question."""

    def __init__(self, config: PruneConfig, backbone: Backbone) -> None:
        self.config, self.backbone = config, backbone

    def __call__(self, tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
        concepts, prior = self.backbone.concepts, question.concept_prior
        relevance_C = concept_relevance(question, concepts)
        relevance_C = relevance_C + self.config.overview_weight * tokens.overview
        if prior is not None:
            relevance_C = relevance_C + expected(prior)
        num_concepts, width = concepts.embeddings.shape
        return tokens.concept_probs @ relevance_C, 2 * num_concepts * (width + len(tokens))

    def why(self, question: Question) -> str:
        return f"evidence for {_named(question)}"


class SaliencyScorer:
    def __init__(self, saliency: Saliency) -> None:
        self.saliency = saliency

    @torch.inference_mode()
    def __call__(self, tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
        saliency_V = self.saliency(tokens.meaning, question.embedding).sigmoid()
        return saliency_V, network.flops(self.saliency.config, len(tokens))

    def why(self, question: Question) -> str:
        return f"scored for {_named(question)}"


class GroundedScorer:
    """The probability that a token shows what is asked about."""

    def __init__(self, grounding: Grounding, rule: TokenScorer) -> None:
        self.grounding, self.rule = grounding, rule

    @torch.inference_mode()
    def __call__(self, tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
        rule_V, rule_flops = self.rule(tokens, question)
        evidence_VC = tokens.concept_probs[:, : self.grounding.config.concepts]
        scene = Scene(tokens.features[None], evidence_VC[None], rule_logits(rule_V)[None])
        states_1Td = question.states[None]
        there_1T = torch.ones(states_1Td.shape[:2], dtype=torch.bool)
        [logits_V] = self.grounding(scene, states_1Td, there_1T)
        flops = attention.flops(self.grounding.config, len(tokens), len(question.states))
        return logits_V.sigmoid(), rule_flops + flops

    def why(self, question: Question) -> str:
        return f"where the thing is that is asked about: {_named(question)}"


class Prune:
    """Where the question asks for text, tokens that look like it gain by how much they do: these
    then come first, in the order that the scorer gives them."""

    def __init__(self, scorer: TokenScorer, text_gate: TextGate | None = None) -> None:
        self.scorer, self.text_gate = scorer, text_gate

    def __call__(self, state: State, record: StageRecord) -> State:
        saliency_V, record.flops = self.scorer(state.tokens, state.question)
        likeness_V, flops = asked_likeness(self.text_gate, state, state.tokens)
        if likeness_V is not None:
            saliency_V, record.flops = saliency_V + likeness_V, record.flops + flops
        positions = top_positions(saliency_V, state.budget.tokens)
        record.kept, record.dropped = len(positions), len(state.tokens) - len(positions)
        record.why = self.scorer.why(state.question)
        kept = KeptTokens(positions, saliency_V, state.tokens, text_likeness=likeness_V)
        return state.add(kept=kept)


def build(parts: Parts) -> Prune:
    grounding, saliency = parts.components.grounding, parts.components.saliency
    rule, gate = ConceptScorer(parts.config.prune, parts.backbone), text_gate.build(parts)
    if grounding is not None:
        check_concepts("grounding", grounding.config.concepts, parts.backbone)
        return Prune(GroundedScorer(grounding, rule), gate)
    return Prune(rule if saliency is None else SaliencyScorer(saliency), gate)


def rule_logits(rule_V: Tensor) -> Tensor:
    """The logarithm of the rule's saliency, which a grounding adds to."""
    return rule_V.clamp(min=LEAST_SALIENCY).log()


def concept_relevance(question: Question, concepts: Concepts) -> Tensor:
    """[C] in [0, 2]: squared cosine of the embeddings, plus 1 where the question names the kind."""
    cosine_C = (concepts.embeddings @ question.embedding).clamp(min=0)
    forms = all_forms(question.words)
    named_C = torch.zeros_like(cosine_C)
    named_C[[i for name in forms for i in concepts.called.get(name, ())]] = 1
    return cosine_C.square() + named_C


def expected(prior: ConceptPrior) -> Tensor:
    """[C] in [0, 1]: how much the question expects each concept, 1 the most expected."""
    return prior.weights / prior.weights.max()


def top_positions(saliency_V: Tensor, count: int) -> Tensor:
    """Grid positions of the `count` most salient tokens, ascending; ties go to the first."""
    order = saliency_V.argsort(descending=True, stable=True)
    return order[:count].sort().values


def _named(question: Question) -> str:
    return ", ".join(question.words) or "what the image shows"
