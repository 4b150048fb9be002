"""decode: the language model answers from the evidence.

The passages that received attention are read, by verification score and attention together, the
best last, where a small decoder heeds it most. As text, that is: the budget or, if that has no say,
`decode.passages` says whether the decoder reads what fusion left of them instead, or besides. After
a further round of retrieval those of the last round are read, and the question is the one of that
round. `readers.py` has the ways to read them, and `sentences.py` those that answer in sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skipqa.confidence import of_answer
from skipqa.config import ConfidenceConfig
from skipqa.errors import UserError
from skipqa.stages.fuse import way_as_set
from skipqa.stages.readers import (
    ClauseReader,
    InstructedReader,
    QuotingReader,
    Reader,
    Reading,
    ReadTogether,
    ShortReader,
)
from skipqa.stages.sentences import ClauseQuoter, SentenceReader, cited
from skipqa.stages.stage import Parts
from skipqa.stages.written import quoted, text_facts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Fused, ReadAs, Verified


class Decode:
    def __init__(
        self,
        reader: Reader,
        calibration: ConfidenceConfig,
        *,
        cite: bool = False,
        passages: ReadAs = "text",
    ) -> None:
        """`cite` adds to each statement the number of the passage it rests on. `passages` is how
        they are read where the budget does not say."""
        self.reader, self.calibration, self.cite = reader, calibration, cite
        self.passages: ReadAs = passages

    def __call__(self, state: State, record: StageRecord) -> State:
        way = state.read_as or self.passages
        used = read_order(state.verified, state.fused)
        used = used[: most_as_text(way, self.reader.max_passages, state.fused)]
        texts = facts(state.verified, used)
        reading = quoted(state) or self.reader(state, [*texts, *text_facts(state)])
        if self.cite:
            reading = _cited(reading, texts, used)
        completion = reading.completion
        record.flops = reading.flops + completion.flops
        record.kept, record.dropped = len(used), len(state.verified.passages) - len(used)
        tokens = f"{completion.prompt_tokens} prompt tokens, {completion.new_tokens} new"
        record.why = f"{reading.how}: {tokens}"
        confidence = of_answer(reading.answer, state.draft, self.calibration)
        answer = replace(
            reading.answer,
            confidence=confidence,
            read=tuple(used),
            prompt_tokens=completion.prompt_tokens,
        )
        return state.add(prompt=reading.prompt, answer=answer)


def _cited(reading: Reading, texts: Sequence[str], used: Sequence[int]) -> Reading:
    """Passages are numbered as an answer lists its evidence. Where the reader has not measured
    whether its answer rests on a passage, a reference says so."""
    answer = reading.answer
    text = cited(answer.text, texts, [j + 1 for j in reversed(used)])
    grounded = text != answer.text if answer.grounded is None else answer.grounded
    return replace(reading, answer=replace(answer, text=text, grounded=grounded))


def build(parts: Parts) -> Decode:
    sentences = parts.config.decode.style == "sentence"
    reader = build_sentence_reader(parts) if sentences else build_reader(parts)
    return Decode(reader, parts.config.confidence, cite=sentences, passages=way_as_set(parts))


def build_sentence_reader(parts: Parts) -> Reader:
    config, backbone = parts.config.decode, parts.backbone
    if config.prompt == "chat":
        return SentenceReader(config, backbone)
    return ClauseQuoter(build_reader(parts))


def build_reader(parts: Parts) -> Reader:
    config, backbone = parts.config.decode, parts.backbone
    if config.reads_fused and config.prompt != "short":
        raise UserError("decode.passages: fused tokens are read by a trained reader alone")
    if config.prompt == "instructions":
        return InstructedReader(config, backbone)
    together = ReadTogether(backbone)
    quoting = QuotingReader(config, backbone, together)
    if config.prompt == "chat":
        return ShortReader(config, backbone, together)
    if config.prompt == "examples":
        return quoting
    return ShortReader(config, backbone, together, ClauseReader(quoting))


def most_as_text(way: ReadAs, most: int, fused: Fused) -> int:
    """Passages, of `most` that a reader takes. Where nothing was fused for it, as in a question
    without an image, they are read as without fusion."""
    if way == "none":
        return 0
    if fused.for_decoder is None:
        return most
    return min(most, int(way == "fused+best"))


def read_order(verified: Verified, fused: Fused) -> list[int]:
    """Passages of the last round that some token attended to, by what they are worth."""
    worths = worth(verified, fused)
    last = max((passage.round for passage in verified.passages), default=1)
    attended = [
        j for j, mass in enumerate(fused.mass) if mass > 0 and verified.passages[j].round == last
    ]
    return sorted(attended, key=lambda j: (-worths[j], j))


def worth(verified: Verified, fused: Fused) -> list[float]:
    """Of each verified passage: its score and its fraction of the attention together."""
    total = sum(fused.mass) or 1.0
    return [score + mass / total for score, mass in zip(verified.scores, fused.mass, strict=True)]


def facts(verified: Verified, used: Sequence[int]) -> list[str]:
    """The passages to read, the best last; one line each, whatever their own line breaks."""
    return [" ".join(verified.passages[j].text.split()) for j in reversed(used)]
