"""draft: answer at once what needs no knowledge (SKV's fast path).

A trained drafter answers from its vocabulary with a calibrated confidence; for yes and no only
what exceeds chance counts. Untrained, the only questions whose answer certainly lies in the image
are those that ask what a thing is. They are answered by the concept that the whole image shows,
with its probability as the confidence; every other question gets confidence 0 and goes on. Where
somebody's own documents are searched, a draft has to be far more certain.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Protocol

import torch

from skipqa.backbones.backbone import Backbone
from skipqa.backbones.concepts import Concept
from skipqa.config import DraftConfig
from skipqa.language import base_forms
from skipqa.nn import drafter as network
from skipqa.nn.drafter import ABSTAIN, above_chance
from skipqa.stages import text_gate
from skipqa.stages.stage import Parts
from skipqa.stages.text_gate import TextGate, shows_text
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Draft, Question, VisualTokens

_POINTER = r"(?:this|that|it|these|those|(?:in|on) th(?:e|is) (?:image|picture|photo))"
_IDENTITY = re.compile(
    rf"(?:what|which)(?: (?:kind|type|sort|breed|species) of)?(?: (?P<noun>[a-z]+(?: [a-z]+)?))?"
    rf" (?:is|are)(?: (?:being )?(?:shown|seen|depicted))? {_POINTER}(?: (?P<after>[a-z]+))?"
)
_COUNTING = re.compile(r"how (?:many|much)\b")


class Drafter(Protocol):
    def __call__(self, question: Question, low_res: VisualTokens) -> tuple[Draft, int]:
        """The draft and its FLOPs."""


class IdentityDrafter:
    """Training-free: "What breed is this?" is answered by the image's most probable concept."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    def __call__(self, question: Question, low_res: VisualTokens) -> tuple[Draft, int]:
        asked = _IDENTITY.fullmatch(question.text.lower().strip(" ?!."))
        if asked is None:
            return Draft("", 0.0, "the answer may need knowledge"), 0
        concepts, noun = self.backbone.concepts, asked["noun"] or asked["after"]
        probs = {
            index: float(prob)
            for index, prob in enumerate(low_res.overview)
            if noun is None or _is_a(concepts[index], noun)
        }
        if not probs:
            return Draft("", 0.0, f"nothing here is known to be a {noun}"), 0
        best = max(probs, key=probs.__getitem__)
        return Draft(concepts[best].name, probs[best], "the question asks what is seen"), 0


class TrainedDrafter:
    def __init__(self, drafter: network.Drafter, num_candidates: int) -> None:
        self.network, self.num_candidates = drafter, num_candidates
        self.vocabulary = drafter.vocabulary()

    @torch.inference_mode()
    def __call__(self, question: Question, low_res: VisualTokens) -> tuple[Draft, int]:
        visual = low_res.features if low_res.drafter_features is None else low_res.drafter_features
        states = question.states if question.drafter_states is None else question.drafter_states
        words, num_words = None, 0
        if low_res.words is not None:
            words = low_res.words.embeddings[None], low_res.words.probs[None]
            num_words = len(low_res.words.names)
        logits = self.network(visual[None], states[None], words=words)
        answers, count = self.network.config.answers, self.num_candidates
        log_probs = self.network.log_probs(logits)[0]
        abstain = float(log_probs[answers.index(ABSTAIN)].exp()) if ABSTAIN in answers else 0.0
        best = log_probs.topk(min(count + 1, len(answers)))  # one more, as one may be to abstain
        ranked = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        candidates = tuple((answers[i], value) for i, value in ranked if answers[i] != ABSTAIN)[
            :count
        ]
        answer, log_prob = candidates[0]
        draft = Draft(
            answer,
            above_chance(answer, math.exp(log_prob)),
            f"the drafter says {answer}",
            candidates,
            self.vocabulary,
            abstain_prob=abstain,
        )
        return draft, network.flops(self.network.config, len(states), num_words)


class DraftAnswer:
    """Whether the draft is `accepted` is the routing decision. A drafter cannot read: a question
    for what is written goes on where the image shows any text."""

    def __init__(
        self,
        config: DraftConfig,
        drafter: Drafter,
        text_gate: TextGate | None = None,
        min_likeness: float = 1.0,
    ) -> None:
        """`min_likeness` to text, of a token that counts as text."""
        self.config, self.drafter = config, drafter
        self.text_gate, self.min_likeness = text_gate, min_likeness

    def __call__(self, state: State, record: StageRecord) -> State:
        draft, record.flops = self.drafter(state.question, state.low_res)
        counting = is_counting(state.question.text)
        threshold = self.config.counting_threshold if counting else self.config.threshold
        accepted = draft.confidence > threshold
        quotes = state.question.asks_what_is_written
        unread = accepted and quotes and shows_text(self.text_gate, state, self.min_likeness)
        accepted = accepted and not unread
        record.kept, record.dropped = int(accepted), int(not accepted)
        verdict = "answered" if accepted else "passed on"
        record.why = (
            f"{verdict}: {draft.reason} ({draft.confidence:.2f}, threshold {threshold:.2f})"
        )
        if unread:
            record.why += ", but has not read the text in the image"
        return state.add(draft=replace(draft, accepted=accepted))


def build(parts: Parts) -> DraftAnswer:
    config, trained = parts.config.draft, parts.components.drafter
    if parts.library.has_own_documents:
        config = cautious(config)
    drafter: Drafter = IdentityDrafter(parts.backbone)
    if trained is not None:
        drafter = TrainedDrafter(trained, config.candidates)
    gate, min_likeness = text_gate.build(parts), parts.config.read_text.min_likeness
    return DraftAnswer(config, drafter, gate, min_likeness)


def cautious(config: DraftConfig) -> DraftConfig:
    """For somebody's own documents, which a draft would leave unread."""
    least = config.own_documents_threshold
    return replace(
        config,
        threshold=max(config.threshold, least),
        counting_threshold=max(config.counting_threshold, least),
    )


def is_counting(question: str) -> bool:
    """It has a threshold of its own: drafters are overconfident where things overlap."""
    return _COUNTING.search(question.lower()) is not None


def _is_a(concept: Concept, noun: str) -> bool:
    return any(noun_form in names for noun_form in base_forms(noun) for names in concept.kinds)
