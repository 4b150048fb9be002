"""encode: a glance at the image and the question as a vector, all that a drafter needs, and what
the question lets one expect to see, where that was learned."""

from __future__ import annotations

from PIL import Image

from skipqa.backbones.backbone import Backbone
from skipqa.config import EncodeConfig
from skipqa.errors import UserError
from skipqa.language import content_words
from skipqa.nn import concept_prior as prior_of
from skipqa.nn.concept_prior import ConceptPriorHead
from skipqa.trace import StageRecord
from skipqa.types import Question, VisualTokens


def encode(
    image: Image.Image,
    text: str,
    backbone: Backbone,
    config: EncodeConfig,
    record: StageRecord,
    concept_prior: ConceptPriorHead | None = None,
) -> tuple[VisualTokens, Question]:
    check_question(text, config)
    tokens, image_flops = backbone.encode_low_res(image, config.scales)
    encoded, for_drafter = backbone.encode_texts([text]), backbone.encode_for_drafter(text)
    record.flops = image_flops + encoded.flops + (for_drafter.flops if for_drafter else 0)
    concepts, expected = backbone.concepts.embeddings, None
    if concept_prior is not None:
        expected = concept_prior.prior(encoded.embeddings[0], concepts)
        record.flops += prior_of.flops(concept_prior.config, len(concepts))
    record.kept, record.dropped = len(tokens), 0
    record.why = f"{tokens.grid} x {tokens.grid} grid, {len(backbone.concepts)} concepts"
    return tokens, Question(
        text.strip(),
        encoded.embeddings[0],
        content_words(text),
        encoded.states[0],
        for_drafter.states[0] if for_drafter else None,
        expected,
    )


def check_question(text: str, config: EncodeConfig) -> None:
    if not text.strip():
        raise UserError("the question is empty")
    if (count := len(text.split())) > config.max_question_words:
        raise UserError(
            f"the question has {count} words, more than the limit of {config.max_question_words}"
        )
    if len(text) > (limit := config.max_question_characters):
        raise UserError(f"the question has {len(text):,} characters, over the limit of {limit:,}")
    if not any(character.isalnum() for character in text):
        raise UserError(f"the question {text.strip()!r} has no words")
