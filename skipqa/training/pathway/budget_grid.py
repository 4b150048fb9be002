"""What every budget is worth: each question answered at every point of a grid of (V', K').

Enters: records and the pipeline. Leaves: the score of the answer and the FLOPs of every question at
every point, which can be looked up between the points. The FLOPs are those of answering: of the
stages that a record holds as they were measured, of the others as the grid runs them. Without
passages nothing is encoded at high resolution, and V' makes no difference. Nothing is trained here.

Shape letters: n questions, G points of V', H points of K'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch import Tensor

from skipqa.backbones.caching import CachedBackbone
from skipqa.pipeline import Pipeline
from skipqa.stages.budget import is_particular
from skipqa.stages.decode import facts, read_order
from skipqa.state import State
from skipqa.tasks.okvqa import normalise
from skipqa.trace import Trace
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.records import Records, replay, replaying
from skipqa.types import Budget, Draft, Retrieved

TOKENS = (32, 128)
PASSAGES = (0, 2, 6, 16)
USUAL = (0, 2)  # the point of the grid that is nearest to the usual budget
GIGA = 1e9
Point = tuple[float, float]  # the score of an answer, and its FLOPs in units of 1e9


@dataclass(frozen=True, slots=True)
class BudgetGrid:
    """Value and cost of each question at each point of the grid, and what a controller reads."""

    value: Tensor  # [n, G, H] the score of the answer
    giga: Tensor  # [n, G, H] FLOPs, in units of 1e9
    visual: Tensor  # [n, d]
    question: Tensor  # [n, d]
    signals: Tensor  # [n, S]
    sources: tuple[str, ...]  # of each question, its data set
    passages: tuple[int, ...] = PASSAGES

    def __len__(self) -> int:
        return len(self.value)

    def only(self, rows: Sequence[int]) -> BudgetGrid:
        names = ("value", "giga", "visual", "question", "signals")
        some = {name: getattr(self, name)[list(rows)] for name in names}
        return replace(self, sources=tuple(self.sources[i] for i in rows), **some)

    def of(self, source: str) -> BudgetGrid:
        return self.only([i for i, own in enumerate(self.sources) if own == source])

    @property
    def gain(self) -> Tensor:
        """[n]: the score of the usual budget less that of no retrieval."""
        tokens, passages = USUAL
        return self.value[:, tokens, passages] - self.value[:, tokens, 0]

    def looked_up(self) -> BudgetGrid:
        """Without the points of no retrieval."""
        value, giga = self.value[:, :, 1:], self.giga[:, :, 1:]
        return replace(self, value=value, giga=giga, passages=self.passages[1:])

    def at(self, tokens_n: Tensor, passages_n: Tensor) -> tuple[Tensor, Tensor]:
        """Value and cost [n], linear between grid points."""
        places = _place(tokens_n, TOKENS), _place(passages_n, self.passages)
        return _between(self.value, *places), _between(self.giga, *places)

    def around(self, tokens_n: Tensor, passages_n: Tensor, width: float) -> tuple[Tensor, Tensor]:
        """Value and cost [n], the mean over grid points, the nearer the more."""
        row_nG = _nearness(_place(tokens_n, TOKENS), len(TOKENS), width)
        column_nH = _nearness(_place(passages_n, self.passages), len(self.passages), width)
        value, giga = (
            torch.einsum("ngh,ng,nh->n", table, row_nG, column_nH)
            for table in (self.value, self.giga)
        )
        return value, giga


def _nearness(place_n: Tensor, size: int, width: float) -> Tensor:
    apart = (place_n[:, None] - torch.arange(size)) / width
    return (-0.5 * apart.square()).softmax(1)


def _place(values: Tensor, grid: Sequence[int]) -> Tensor:
    """Where on the grid, as a real-valued index; differentiable."""
    points = torch.tensor(grid, dtype=values.dtype)
    left = (torch.searchsorted(points, values.detach().contiguous(), right=True) - 1).clamp(
        0, len(grid) - 2
    )
    return left + ((values - points[left]) / (points[left + 1] - points[left])).clamp(0, 1)


def _between(table_nGH: Tensor, row_n: Tensor, column_n: Tensor) -> Tensor:
    every = torch.arange(len(row_n))
    g, h = (
        place.detach().floor().long().clamp(0, size - 2)
        for place, size in ((row_n, table_nGH.shape[1]), (column_n, table_nGH.shape[2]))
    )
    y, x = row_n - g, column_n - h
    upper = torch.lerp(table_nGH[every, g, h], table_nGH[every, g, h + 1], x)
    lower = torch.lerp(table_nGH[every, g + 1, h], table_nGH[every, g + 1, h + 1], x)
    return torch.lerp(upper, lower, y)


def evaluate_grid(context: TrainingContext, rows: Sequence[int]) -> BudgetGrid:
    """By answering each question at every point, over all workers."""
    closed_flops = _flops_without_retrieval(context.pipeline)
    found = torch.tensor(context.spread(answers, rows, "trying budgets", closed_flops))
    value, giga = found.reshape(len(rows), len(TOKENS), len(PASSAGES), 2).unbind(-1)
    sources = tuple(context.records.about[i]["source"] for i in rows)
    return BudgetGrid(value, giga, *controller_inputs(context.records, rows), sources)


def controller_inputs(records: Records, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """What a controller reads: the mean low-resolution token, the question, the signals."""
    visual, question, signals = (
        records[name][list(rows)].float() for name in ("low_res", "question", "signals")
    )
    return visual, question, signals


def _flops_without_retrieval(pipeline: Pipeline) -> int:
    """From budget to retrieve: the same for every image, and nearly for every question."""
    image, trace = Image.new("RGB", (640, 480), (120, 130, 90)), Trace()
    closed = pipeline.with_config(budget={"passages": 0}).with_components(budget=None)
    closed.run(State(image, "What is this?"), stop="retrieve", trace=trace)
    return sum(record.flops for record in trace.stages if record.name not in ("encode", "draft"))


@torch.inference_mode()
def answers(pipeline: Pipeline, records: Records, closed_flops: int) -> list[list[list[Point]]]:
    """For each question, V' and K': the score of the answer, and the FLOPs in units of 1e9."""
    pipeline = replaying(pipeline.with_backbone(CachedBackbone(pipeline.backbone)))
    drafter = pipeline.components.drafter
    vocabulary = drafter.vocabulary() if drafter else {}
    return [
        _Answering(pipeline, records, i, records.draft(i, vocabulary)).points(closed_flops)
        for i in range(len(records))
    ]


@torch.inference_mode()
def scores_without(
    pipeline: Pipeline, records: Records, skipped: Mapping[str, tuple[str, ...]]
) -> list[float]:
    """Of each question at the usual budget, without the indexes that are `skipped`, by question."""
    pipeline = replaying(pipeline.with_backbone(CachedBackbone(pipeline.backbone)))
    drafter = pipeline.components.drafter
    vocabulary = drafter.vocabulary() if drafter else {}
    found = []
    for i in range(len(records)):
        one = _Answering(pipeline, records, i, records.draft(i, vocabulary))
        found.append(one.score_without(skipped[question_key(records, i)]))
    return found


def question_key(records: Records, i: int) -> str:
    """The same in every part of the records."""
    return f"{records.about[i]['source']}/{records.about[i]['id']}"


class _Answering:
    """One question, answered again and again."""

    def __init__(self, pipeline: Pipeline, records: Records, i: int, draft: Draft) -> None:
        self.pipeline, self.records, self.i, self.draft = pipeline, records, i, draft
        self.about = records.about[i]
        self.right = {normalise(a): float(s) for a, s in self.about["answers"].items()}
        self.read: dict[tuple[bool, tuple[str, ...]], Point] = {}  # equal passages are read once

    def points(self, closed_flops: int) -> list[list[Point]]:
        spent: Mapping[str, int] = self.about["flops"]
        first = spent["encode"] + spent["draft"]
        high_res = is_particular(self.records.question(self.i), self.pipeline.config.budget)
        looking = spent["look"] * high_res + spent["zoom"]
        closed = self._closed(first + closed_flops)
        return [
            [closed, *self._looked_up(tokens, first + looking, high_res=high_res)]
            for tokens in TOKENS
        ]

    def score_without(self, skipped: tuple[str, ...]) -> float:
        tokens, passages = TOKENS[USUAL[0]], PASSAGES[USUAL[1]]
        tokens = min(tokens, self.records["meaning"].shape[1])
        budget = Budget(tokens, passages, skipped_indexes=skipped)
        state, _ = replay(self.records, self.i, self.pipeline, budget)
        high_res = is_particular(self.records.question(self.i), self.pipeline.config.budget)
        return self._answered(state, passages, 0, high_res=high_res)[0]

    def _closed(self, before: int) -> Point:
        state, _ = replay(self.records, self.i, self.pipeline, Budget(TOKENS[0], 0, high_res=False))
        return self._answered(state, 0, before, high_res=False)

    def _looked_up(self, tokens: int, before: int, *, high_res: bool) -> list[Point]:
        most = Budget(min(tokens, self.records["meaning"].shape[1]), PASSAGES[-1])
        state, retrieving = replay(self.records, self.i, self.pipeline, most)
        return [
            self._answered(state, count, before + retrieving, high_res=high_res)
            for count in PASSAGES[1:]
        ]

    def _answered(self, state: State, count: int, before: int, *, high_res: bool) -> Point:
        """With the first `count` of what was retrieved."""
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
        most = self.pipeline.config.decode.max_passages
        texts = facts(state.verified, read_order(state.verified, state.fused)[:most])
        key = high_res, tuple(texts)
        if key not in self.read:
            decoding = Trace()
            answer = self.pipeline.run(state, start="decode", trace=decoding).answer.text
            self.read[key] = self.right.get(normalise(answer), 0.0), decoding.flops
        score, reading = self.read[key]
        return score, (before + trace.flops + reading) / GIGA
