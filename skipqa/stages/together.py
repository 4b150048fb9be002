"""Several questions through decode at once, if their decoder can: `Waiting` for each.

Enters: questions that have everything but an answer, of one pipeline or several. Leaves: the state
of each with its answer, or the error it ended with. Those that share a decoder use it together
(`backbones/generation/packing.py`); the time of each is then that of all. Answers are those of one
by one, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skipqa.backbones.backbone import Backbone
from skipqa.backbones.generation.mixin import GenerationMixin
from skipqa.backbones.generation.packing import decode_together
from skipqa.stages.stage import Build, Parts
from skipqa.state import State
from skipqa.trace import Trace


@dataclass(frozen=True, slots=True)
class Waiting:
    """A question that is fused, and what it is decoded with."""

    state: State
    trace: Trace
    build: Build  # the pipeline's decode stage
    parts: Parts

    def decode(self, backbone: Backbone) -> State | Exception:
        """With this backbone in place of its own. An error stays with its question."""
        try:
            stage = self.build(replace(self.parts, backbone=backbone))
            with self.trace.stage("decode") as record:
                return stage(self.state, record)
        except Exception as error:
            return error


def decode_batch(batch: Sequence[Waiting]) -> list[State | Exception]:
    by_backbone: dict[int, list[int]] = {}
    for number, waiting in enumerate(batch):
        by_backbone.setdefault(id(waiting.parts.backbone), []).append(number)
    found: dict[int, State | Exception] = {}
    for numbers in by_backbone.values():
        backbone = batch[numbers[0]].parts.backbone
        tasks = [batch[number].decode for number in numbers]
        if len(tasks) > 1 and isinstance(backbone, GenerationMixin):
            results = decode_together(backbone, tasks)
        else:
            results = [decode(backbone) for decode in tasks]
        found |= zip(numbers, results, strict=True)
    return [found[number] for number in range(len(batch))]
