"""decode: the language model answers from the evidence.

The passages that received attention are read, by verification score and attention together, the
best last, where a small decoder heeds it most. `readers.py` has the ways to read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skipqa.confidence import of_answer
from skipqa.config import ConfidenceConfig
from skipqa.stages.readers import (
    ClauseReader,
    InstructedReader,
    QuotingReader,
    Reader,
    ReadTogether,
    ShortReader,
)
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Fused, Verified


class Decode:
    def __init__(self, reader: Reader, calibration: ConfidenceConfig) -> None:
        self.reader, self.calibration = reader, calibration

    def __call__(self, state: State, record: StageRecord) -> State:
        used = read_order(state.verified, state.fused)[: self.reader.max_passages]
        reading = self.reader(state, facts(state.verified, used))
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


def build(parts: Parts) -> Decode:
    return Decode(build_reader(parts), parts.config.confidence)


def build_reader(parts: Parts) -> Reader:
    config, backbone = parts.config.decode, parts.backbone
    if config.prompt == "instructions":
        return InstructedReader(config, backbone)
    together = ReadTogether(backbone)
    quoting = QuotingReader(config, backbone, together)
    if config.prompt == "examples":
        return quoting
    return ShortReader(config, backbone, together, ClauseReader(quoting))


def read_order(verified: Verified, fused: Fused) -> list[int]:
    """Passages that some token attended to, by verification score and attention together."""
    total = sum(fused.mass) or 1.0
    value = [score + mass / total for score, mass in zip(verified.scores, fused.mass, strict=True)]
    attended = [j for j, mass in enumerate(fused.mass) if mass > 0]
    return sorted(attended, key=lambda j: (-value[j], j))


def facts(verified: Verified, used: Sequence[int]) -> list[str]:
    """The passages to read, the best last; one line each, whatever their own line breaks."""
    return [" ".join(verified.passages[j].text.split()) for j in reversed(used)]
