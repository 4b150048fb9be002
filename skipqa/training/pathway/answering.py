"""A gathered question answered again and again, with other budgets.

Enters: records and the pipeline. Leaves: for each answer its score and FLOPs, and the tables that
hold them next to what a controller knows of the question. The FLOPs are those of answering: of the
stages that a record holds as they were measured, of the others as they run here. Nothing is trained
here.

Shape letters: n questions, d text width, S signals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from PIL import Image
from torch import Tensor

from skipqa.backbones.caching import CachedBackbone
from skipqa.pipeline import Pipeline
from skipqa.stages.budget import is_particular
from skipqa.stages.decode import facts, read_order
from skipqa.state import State
from skipqa.tasks.okvqa import normalise
from skipqa.trace import Trace
from skipqa.training.pathway.records import Records, replay, replaying
from skipqa.types import Budget, Draft, Retrieved

CLOSED_TOKENS = 32  # V' without passages, where it makes no difference
GIGA = 1e9
Point = tuple[float, float]  # the score of an answer, and its FLOPs in units of 1e9


@dataclass(frozen=True, slots=True)
class Answered:
    """What each of several ways to answer is worth to each question, what it costs, and what a
    controller reads."""

    value: Tensor  # [n, …] the score of the answer
    giga: Tensor  # [n, …] FLOPs, in units of 1e9
    visual: Tensor  # [n, d]
    question: Tensor  # [n, d]
    signals: Tensor  # [n, S]
    sources: tuple[str, ...]  # of each question, its data set

    def __len__(self) -> int:
        return len(self.value)

    def only(self, rows: Sequence[int]) -> Self:
        names = ("value", "giga", "visual", "question", "signals")
        some = {name: getattr(self, name)[list(rows)] for name in names}
        return replace(self, sources=tuple(self.sources[i] for i in rows), **some)

    def of(self, source: str) -> Self:
        return self.only([i for i, own in enumerate(self.sources) if own == source])


def controller_inputs(records: Records, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """What a controller reads: the mean low-resolution token, the question, the signals."""
    visual, question, signals = (
        records[name][list(rows)].float() for name in ("low_res", "question", "signals")
    )
    return visual, question, signals


def flops_without_retrieval(pipeline: Pipeline) -> int:
    """From budget to retrieve: the same for every image, and nearly for every question."""
    image, trace = Image.new("RGB", (640, 480), (120, 130, 90)), Trace()
    closed = pipeline.with_config(budget={"passages": 0}).with_components(budget=None)
    closed.run(State(image, "What is this?"), stop="retrieve", trace=trace)
    return sum(record.flops for record in trace.stages if record.name not in ("encode", "draft"))


def question_key(records: Records, i: int) -> str:
    """The same in every part of the records."""
    return f"{records.about[i]['source']}/{records.about[i]['id']}"


def each(pipeline: Pipeline, records: Records) -> Iterator[Answering]:
    """Every question of the records."""
    pipeline = replaying(pipeline.with_backbone(CachedBackbone(pipeline.backbone)))
    drafter = pipeline.components.drafter
    vocabulary = drafter.vocabulary() if drafter else {}
    for i in range(len(records)):
        yield Answering(pipeline, records, i, records.draft(i, vocabulary))


class Answering:
    """One question, from prune on."""

    def __init__(self, pipeline: Pipeline, records: Records, i: int, draft: Draft) -> None:
        self.pipeline, self.records, self.i, self.draft = pipeline, records, i, draft
        self.about = records.about[i]
        self.right = {normalise(a): float(s) for a, s in self.about["answers"].items()}
        self.read: dict[tuple[bool, tuple[str, ...]], Point] = {}  # equal passages are read once
        self.high_res = is_particular(records.question(i), pipeline.config.budget)

    @property
    def num_tokens(self) -> int:
        """V"""
        return int(self.records["meaning"].shape[1])

    def closed(self, closed_flops: int) -> Point:
        """Without retrieval, so at low resolution."""
        budget = Budget(CLOSED_TOKENS, 0, high_res=False)
        state, _ = replay(self.records, self.i, self.pipeline, budget)
        return self._answered(state, 0, self._drafting + closed_flops, high_res=False)

    def retrieved(self, budget: Budget) -> tuple[State, int]:
        """With what this budget retrieves, and the FLOPs up to there."""
        state, retrieving = replay(self.records, self.i, self.pipeline, budget)
        spent = self.about["flops"]
        looking = spent["look"] * self.high_res + spent["zoom"]
        return state, self._drafting + looking + retrieving

    def answered(self, state: State, count: int, before: int) -> Point:
        """With the first `count` of what was retrieved."""
        return self._answered(state, count, before, high_res=self.high_res)

    @property
    def _drafting(self) -> int:
        spent: Mapping[str, int] = self.about["flops"]
        return spent["encode"] + spent["draft"]

    def _answered(self, state: State, count: int, before: int, *, high_res: bool) -> Point:
        trace, passages = Trace(), state.retrieved.passages[:count]
        tokens = state.kept.tokens
        if not high_res:  # the words are those of the low-resolution view
            tokens = replace(tokens, words=self.records.low_res_words(self.i))
        state = state.add(
            draft=self.draft,
            budget=replace(state.budget, passages=count),
            kept=replace(state.kept, tokens=tokens),
            retrieved=Retrieved(passages, 0, 0),
        )
        state = self.pipeline.run(state, start="verify", stop="fuse", trace=trace)
        before += trace.flops
        if state.fused.for_decoder is not None:  # of all that was verified, along its own edges
            score, reading = self._decoded(state)
            return score, (before + reading) / GIGA
        most = self.pipeline.config.decode.max_passages
        texts = facts(state.verified, read_order(state.verified, state.fused)[:most])
        key = high_res, tuple(texts)
        if key not in self.read:
            self.read[key] = self._decoded(state)
        score, reading = self.read[key]
        return score, (before + reading) / GIGA

    def _decoded(self, state: State) -> Point:
        decoding = Trace()
        answer = self.pipeline.run(state, start="decode", trace=decoding).answer.text
        return self.right.get(normalise(answer), 0.0), decoding.flops
