"""What each visual token is worth to a whole pipeline's answer, next to its saliency.

Enters: any pipeline, a question with its correct answer, and a `TokenAblation`. Leaves: the
saliency of some visual tokens and their counterfactual worth, which `claims/fidelity.py` compares:
the pipeline runs again from pruning on with one token replaced by the mean token, and the worth is
what the log-probability of the correct answer, or of the evidence for it, loses.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from skipqa.backbones.backbone import Backbone, Completion, Decoding
from skipqa.backbones.caching import CachedBackbone
from skipqa.claims.fidelity import counterfactual_worth, score_gap
from skipqa.pipeline import Pipeline
from skipqa.state import ImageSource, State
from skipqa.types import VisualTokens

# What worth is measured by: the decoder's log-probability of the correct answer, or, at a fraction
# of the cost, the logarithm of the best passage's verification score.
Proxy = Literal["answer", "evidence"]
LogProb = Callable[[State], float]  # of a state that has been through `look`

NO_EVIDENCE = 1e-6
PER_TOKEN = ("features", "concept_probs", "meaning")  # fields with one row per token
BATCH = 8  # counterfactuals in memory at once


@dataclass(frozen=True, slots=True)
class TokenAblation:
    """Which tokens are replaced, one at a time, and what is measured without them."""

    proxy: Proxy = "answer"
    tokens: int | None = None  # drawn at random; None: all
    seed: int = 0
    half_kept: bool = False  # half of them from those that pruning keeps

    def positions(self, num_tokens: int, kept: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(num_tokens, generator=generator)
        if self.half_kept and self.tokens is not None:
            is_kept = torch.isin(order, kept)
            some = order[is_kept][: self.tokens // 2]
            order = torch.cat((some, order[~is_kept]))
        return order[: self.tokens].sort().values


class Measured(NamedTuple):
    saliency: Tensor  # [n] of the tokens that the ablation draws
    worth: Tensor  # [n]
    gap: float  # between the saliency of the last token kept and the first one dropped


def measure_question(
    pipeline: Pipeline,
    image: ImageSource,
    question: str,
    answer: str,
    ablation: TokenAblation,
) -> Measured:
    state = pipeline.run(State(image, question), stop="look")
    packed_VD = _pack(state.tokens)
    whole = state.add(tokens=_unpack(packed_VD, state.tokens))
    kept = pipeline.run(whole, start="prune", stop="prune").kept
    positions = ablation.positions(len(state.tokens), kept.positions)
    measure = _evidence(pipeline) if ablation.proxy == "evidence" else _answer(pipeline, answer)

    def log_prob(packed_BVD: Tensor) -> Tensor:
        scores = [measure(state.add(tokens=_unpack(one, state.tokens))) for one in packed_BVD]
        return torch.tensor(scores, dtype=torch.float64)

    worth_n = counterfactual_worth(log_prob, packed_VD, batch=BATCH, positions=positions)
    gap = score_gap(kept.saliency, len(kept.positions))
    return Measured(kept.saliency[positions], worth_n, gap)


def _evidence(pipeline: Pipeline) -> LogProb:
    again = pipeline.with_backbone(CachedBackbone(pipeline.backbone))

    def measure(state: State) -> float:
        scores = again.run(state, start="prune", stop="verify").verified.scores
        return math.log(max((*scores, NO_EVIDENCE)))

    return measure


def _answer(pipeline: Pipeline, answer: str) -> LogProb:
    scoring = _ScoreAnswer(pipeline.backbone, answer)
    again = pipeline.with_backbone(scoring)

    def measure(state: State) -> float:
        again.run(state, start="prune")
        return scoring.score

    return measure


def _pack(tokens: VisualTokens) -> Tensor:
    return torch.cat([getattr(tokens, name) for name in PER_TOKEN], dim=1)


def _unpack(packed_VD: Tensor, like: VisualTokens) -> VisualTokens:
    widths = [getattr(like, name).shape[1] for name in PER_TOKEN]
    parts = dict(zip(PER_TOKEN, packed_VD.split(widths, dim=1), strict=True))
    return dataclasses.replace(like, **parts)


class _ScoreAnswer(CachedBackbone):
    """A backbone that scores the correct answer instead of generating one.

    `score` is the log-probability after the last prompt; a prompt without visual tokens is scored
    once.
    """

    def __init__(self, backbone: Backbone, answer: str) -> None:
        super().__init__(backbone)
        self._answer = answer
        self._scored: dict[str, float] = {}
        self.score = 0.0

    def generate(self, prompt: str, decoding: Decoding, visual: Tensor | None = None) -> Completion:
        if visual is not None or prompt not in self._scored:
            self._scored[prompt] = self.backbone.log_prob(prompt, self._answer, visual)
        self.score = self._scored[prompt]
        num_scored = len(decoding.candidates) + 1 if decoding.candidates else 0
        return Completion("", 0, 0, 0, (0.0,) * num_scored)
