"""encode: the image at low resolution and the question, all that a drafter needs.

Also the concept prior, if one was trained: which concepts the question is about, and which of its
words stand for the thing; and, if a bridge was trained, which stand for what a passage has to name
first.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

from torch import Tensor

from skipqa.backbones.backbone import Backbone, EncodedTexts
from skipqa.config import EncodeConfig
from skipqa.errors import UserError
from skipqa.files import is_text
from skipqa.image import open_image
from skipqa.language import content_words
from skipqa.nn import bridge, concept_prior, span
from skipqa.nn.bridge import BridgePointer
from skipqa.nn.concept_prior import ConceptPriorHead
from skipqa.nn.span import SpanHead
from skipqa.stages import text_gate
from skipqa.stages.stage import Parts
from skipqa.stages.text_gate import NO_TEXT, TextGate
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import ConceptPrior, Question


class PriorEstimator(Protocol):
    def __call__(self, embedding: Tensor) -> tuple[ConceptPrior | None, int]:
        """The prior given the pooled question, and its FLOPs."""


class NoPrior:
    def __call__(self, embedding: Tensor) -> tuple[ConceptPrior | None, int]:
        return None, 0


class TrainedPrior:
    def __init__(self, head: ConceptPriorHead, backbone: Backbone) -> None:
        self.head, self.backbone = head, backbone

    def __call__(self, embedding: Tensor) -> tuple[ConceptPrior | None, int]:
        spent = concept_prior.flops(self.head.config, len(self._projected))
        return self.head.prior(embedding, self._projected), spent

    @cached_property
    def _projected(self) -> Tensor:
        return self.head.of_concept(self.backbone.concepts.embeddings)


class SpanFinder(Protocol):
    def __call__(self, encoded: EncodedTexts) -> tuple[tuple[int, int] | None, int]:
        """The characters of one question that stand for the thing, and the FLOPs."""


class NoSpan:
    def __call__(self, encoded: EncodedTexts) -> tuple[tuple[int, int] | None, int]:
        return None, 0


class TrainedSpan:
    def __init__(self, head: SpanHead) -> None:
        self.head = head

    def __call__(self, encoded: EncodedTexts) -> tuple[tuple[int, int] | None, int]:
        spent = span.flops(self.head.config, len(encoded.states[0]))
        return _characters(self.head.find(encoded.states[0]), encoded), spent


class TrainedNested:
    """The words that stand for a bridge."""

    def __init__(self, pointer: BridgePointer) -> None:
        self.pointer = pointer

    def __call__(self, encoded: EncodedTexts) -> tuple[tuple[int, int] | None, int]:
        states_Td = encoded.states[0]
        spent = bridge.nested_flops(self.pointer.config, len(states_Td))
        found = self.pointer.find_nested(encoded.embeddings[0], states_Td)
        return _characters(found, encoded), spent


def _characters(tokens: tuple[int, int] | None, encoded: EncodedTexts) -> tuple[int, int] | None:
    """From the first token's first character to the last one's last."""
    if tokens is None or not encoded.characters:
        return None
    first, last = (encoded.characters[0][place] for place in (tokens[0], tokens[1] - 1))
    return first[0], last[1]


class Encode:
    def __init__(
        self,
        config: EncodeConfig,
        backbone: Backbone,
        prior: PriorEstimator,
        span: SpanFinder | None = None,
        nested: SpanFinder | None = None,
        text_gate: TextGate | None = None,
    ) -> None:
        self.config, self.backbone = config, backbone
        self.prior, self.span, self.nested = prior, span or NoSpan(), nested or NoSpan()
        self.text_gate = text_gate

    def __call__(self, state: State, record: StageRecord) -> State:
        if state.source is None:
            raise UserError("there is no image to answer from")
        image = state.image if "image" in state else open_image(state.source)
        check_question(state.text, self.config)  # before the image is encoded
        if "low_res" in state:  # filled from another question about the same image
            tokens = state.low_res
        else:
            tokens, record.flops = self.backbone.encode_low_res(image, self.config.scales)
        question, flops = self.question(state.text)
        record.flops += flops
        record.kept, record.dropped = len(tokens), 0
        record.why = f"{tokens.grid} x {tokens.grid} grid, {len(self.backbone.concepts)} concepts"
        if question.thing:
            record.why += f", about {question.thing!r}"
        if question.asks_for_text:
            record.why += ", may need text in the image"
        return state.add(image=image, question=question, low_res=tokens)

    def question(self, text: str) -> tuple[Question, int]:
        """The question by itself, and the FLOPs."""
        backbone, text = self.backbone, text.strip()  # as the characters of its words are counted
        encoded, for_drafter = backbone.encode_texts([text]), backbone.encode_for_drafter(text)
        prior, prior_flops = self.prior(encoded.embeddings[0])
        found, span_flops = self.span(encoded)
        nested, nested_flops = self.nested(encoded)
        gate, asks = self.text_gate, NO_TEXT
        if gate is not None:
            asks = gate.asks(text, encoded.embeddings[0])
        flops = encoded.flops + (for_drafter.flops if for_drafter else 0)
        question = Question(
            text,
            encoded.embeddings[0],
            content_words(text),
            encoded.states[0],
            for_drafter.states[0] if for_drafter else None,
            prior,
            found,
            nested,
            asks.for_text,
            asks.what_is_written,
        )
        return question, flops + prior_flops + span_flops + nested_flops + asks.flops


def build(parts: Parts) -> Encode:
    config, backbone, head = parts.config.encode, parts.backbone, parts.components.concept_prior
    nested, gate = build_nested(parts), text_gate.build(parts)
    if head is None:
        return Encode(config, backbone, NoPrior(), NoSpan(), nested, gate)
    prior = TrainedPrior(head, backbone)
    return Encode(config, backbone, prior, TrainedSpan(head.span), nested, gate)


def build_nested(parts: Parts) -> SpanFinder:
    """Of the words that stand for a bridge."""
    pointer = parts.components.bridge
    return NoSpan() if pointer is None else TrainedNested(pointer)


def check_question(text: str, config: EncodeConfig) -> None:
    if not text.strip():
        raise UserError("the question is empty")
    if (count := len(text.split())) > config.max_question_words:
        raise UserError(
            f"the question has {count} words, more than the limit of {config.max_question_words}"
        )
    if len(text) > (limit := config.max_question_characters):
        raise UserError(f"the question has {len(text):,} characters, over the limit of {limit:,}")
    if not is_text(text):
        raise UserError("the question is not UTF-8 text")
    if not any(character.isalnum() for character in text):
        raise UserError(f"the question {text.strip()[:80]!r} has no words")
