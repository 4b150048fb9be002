"""What answering reads today of the passages that were found for a gathered question.

Enters: gathered records. Leaves: for each of them the passages that were verified, with their
scores, and those that are kept, in the order in which they are read as text. Nothing is trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from skipqa.pipeline import Pipeline
from skipqa.stages.decode import read_order
from skipqa.training.pathway.records import Records
from skipqa.types import Budget, Retrieved


@dataclass(frozen=True, slots=True)
class ReadToday:
    """What is verified for a question, what of it is kept, and in which order that is read."""

    texts: tuple[str, ...]  # those that are kept first
    scores: tuple[float, ...]  # nu_j
    retrieved: tuple[float, ...]  # retrieval scores
    kept: int
    order: tuple[int, ...]  # of those that are kept and attended to, the best first


def read_today(pipeline: Pipeline, records: Records) -> list[ReadToday]:
    """Of every record, through the real stages."""
    config = pipeline.config.budget
    found = []
    for i in range(len(records)):
        state = records.after_retrieve(i, len(pipeline.backbone.concepts))
        passages = state.retrieved.passages[: config.passages]
        state = state.add(
            budget=Budget(len(state.kept.positions), config.passages),
            retrieved=Retrieved(passages, 0, 0),
        )
        state = pipeline.run(state, start="verify", stop="fuse")
        verified = state.verified
        scored = [*zip(verified.passages, verified.scores, strict=True), *verified.rejected]
        found.append(
            ReadToday(
                tuple(one.text for one, _ in scored),
                tuple(score for _, score in scored),
                tuple(one.relative for one, _ in scored),
                len(verified.passages),
                tuple(read_order(verified, state.fused)),
            )
        )
    return found


def read_as_text(pipeline: Pipeline, records: Records) -> list[ReadToday]:
    """As `read_today`, whether or not the pipeline has a fusion reader already."""
    return read_today(pipeline.with_config(decode={"passages": "text"}), records)
