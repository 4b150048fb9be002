"""decode: the language model answers from the evidence.

Without a trained projector the decoder cannot read fused tokens, so it is told in words: the
passages that received attention, those with the most last, where a small model heeds them
best, then what the regions show, then the question. Two worked examples come first, and the
answer can only be a span of those passages: a model of this size otherwise makes things up
(LOG.md has the comparison), and a quoted answer is grounded by construction.
"""

from __future__ import annotations

from collections.abc import Sequence

from skipqa.backbones.backbone import Backbone
from skipqa.backbones.concepts import Concepts
from skipqa.config import DecodeConfig
from skipqa.language import words_of
from skipqa.trace import StageRecord
from skipqa.types import Budget, Fused, KeptTokens, Question, Region, Verified

MAX_SHOWN = 2  # regions named to the decoder, the most salient

EXAMPLES = """\
Fact: lantern (noun): a lamp in a case of glass that shields its flame from the wind
Picture: lantern
Question: What does the glass do?
Answer: it shields the flame from the wind

Fact: leipajuusto (noun): soft cheese from the north of Finland, often eaten with cloudberries
Picture: cheese
Question: Which country does this food come from?
Answer: Finland

"""
ENDING = "Answer:"


def decode(
    question: Question,
    allowed: Budget,
    kept_tokens: KeptTokens,
    regions: Sequence[Region],
    verified: Verified,
    fused: Fused,
    backbone: Backbone,
    config: DecodeConfig,
    record: StageRecord,
) -> str:
    used = read_order(verified, fused)[: config.max_passages]
    texts = facts(verified, used)
    shown = names_shown(regions, backbone.concepts)
    prompt = write_prompt(question, texts, shown)
    known = words_of(" ".join([question.text, *shown]))
    reply = backbone.complete(prompt, config.max_new_tokens, texts, known)
    record.flops = reply.flops
    record.kept, record.dropped = len(used), len(verified.passages) - len(used)
    record.why = f"{reply.prompt_tokens} prompt tokens, {reply.new_tokens} new"
    record.result = prompt
    return reply.text


def read_order(verified: Verified, fused: Fused) -> list[int]:
    """Passages that some token attended to, by verification score and attention together."""
    total = sum(fused.mass) or 1.0
    worth = [score + mass / total for score, mass in zip(verified.scores, fused.mass, strict=True)]
    attended = [j for j, mass in enumerate(fused.mass) if mass > 0]
    return sorted(attended, key=lambda j: (-worth[j], j))


def facts(verified: Verified, used: Sequence[int]) -> list[str]:
    """The passages to read, the best last; one line each, whatever their own line breaks."""
    return [" ".join(verified.passages[j].passage.text.split()) for j in reversed(used)]


def names_shown(regions: Sequence[Region], concepts: Concepts) -> list[str]:
    names = dict.fromkeys(concepts[region.concepts[0][0]].name for region in regions)
    return list(names)[:MAX_SHOWN]


def write_prompt(question: Question, texts: Sequence[str], shown: Sequence[str]) -> str:
    lines = [f"Fact: {text}" for text in texts]
    lines += [f"Picture: {', '.join(shown)}", f"Question: {question.text}", ENDING]
    return EXAMPLES + "\n".join(lines)
