"""Questions without an image: the same pipeline with nothing to see.

Enters: a pipeline. Leaves: one whose state has no image and no visual tokens; the question's own
words are the only query, and passages are verified by how near they are to the question. It is for
conversations, where people also ask about what they do not show.
"""

from __future__ import annotations

import torch

from skipqa.pipeline import Pipeline
from skipqa.stages import encode
from skipqa.stages.regions import EVERYWHERE
from skipqa.stages.stage import Parts
from skipqa.stages.verify import QuestionVerifier, Verify
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Draft, Fused, KeptTokens, SeenWords, VisualTokens


def text_only(base: Pipeline) -> Pipeline:
    return base.with_config(budget={"rounds": 1}).with_stages(
        encode=_Encode,
        draft=_Draft,
        look=_Look,
        prune=_Prune,
        regions=_Regions,
        zoom=_Zoom,
        verify=_build_verify,
        fuse=_Fuse,
    )


class _Encode:
    def __init__(self, parts: Parts) -> None:
        self.encode, self.backbone = encode.build(parts), parts.backbone

    def __call__(self, state: State, record: StageRecord) -> State:
        encode.check_question(state.text, self.encode.config)
        question, record.flops = self.encode.question(state.text)
        widths, num_concepts = self.backbone.widths, len(self.backbone.concepts)
        nothing_Vd = torch.zeros(0, widths.text)
        tokens = VisualTokens(
            torch.zeros(0, widths.vision),
            torch.zeros(0, num_concepts),
            nothing_Vd,
            torch.zeros(num_concepts),
            grid=0,
            words=SeenWords((), torch.zeros(0), nothing_Vd),
        )
        record.kept, record.dropped, record.why = 0, 0, "no image"
        return state.add(question=question, low_res=tokens)


class _Stage:
    def __init__(self, parts: Parts) -> None:
        """They need nothing."""


class _Draft(_Stage):
    def __call__(self, state: State, record: StageRecord) -> State:
        record.kept, record.dropped, record.why = 0, 1, "passed on: no image to draft from"
        return state.add(draft=Draft("", 0.0, "no image"))


class _Look(_Stage):
    def __call__(self, state: State, record: StageRecord) -> State:
        return state.add(tokens=state.low_res)


class _Prune(_Stage):
    def __call__(self, state: State, record: StageRecord) -> State:
        none = torch.zeros(0, dtype=torch.int64)
        return state.add(kept=KeptTokens(none, torch.zeros(0), state.tokens))


class _Regions(_Stage):
    def __call__(self, state: State, record: StageRecord) -> State:
        record.why = "one query, of the question's words"
        return state.add(regions=(EVERYWHERE,))


class _Zoom(_Stage):
    def __call__(self, state: State, record: StageRecord) -> State:
        return state


def _build_verify(parts: Parts) -> Verify:
    return Verify(parts.config.verify, QuestionVerifier(parts.config.verify, parts.backbone))


class _Fuse(_Stage):
    """No token attends to anything: every verified passage goes on to the decoder."""

    def __call__(self, state: State, record: StageRecord) -> State:
        num_passages = len(state.verified.passages)
        no_edges = torch.zeros(0, num_passages, dtype=torch.bool)
        mass = (1.0,) * num_passages
        return state.add(fused=Fused(state.kept.meaning, no_edges, mass))
