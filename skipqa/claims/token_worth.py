"""What each visual token is worth to a whole pipeline's answer, next to its saliency.

Enters: any pipeline and a question with its correct answer. Leaves: the saliency of some of its
visual tokens and their counterfactual worth, which `claims/fidelity.py` compares: the pipeline runs
again with one token replaced by the mean token, and the worth is what the log-probability of the
correct answer, or of the evidence for it, loses. Only the pipeline's backbone is replaced.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Literal

import torch
from PIL import Image
from torch import Tensor

from skipqa.backbones.backbone import Backbone, Completion, Decoding, EncodedTexts
from skipqa.claims.fidelity import counterfactual_worth
from skipqa.evaluation.systems.changes import with_backbone
from skipqa.image import open_image
from skipqa.pipeline import Pipeline
from skipqa.types import VisualTokens

# What worth is measured by: the decoder's log-probability of the correct answer, or, at a fraction
# of the cost, the logarithm of the best passage's verification score.
Proxy = Literal["answer", "evidence"]
NO_EVIDENCE = 1e-6

PER_TOKEN = ("features", "evidence", "meaning")  # fields with one row per token


def measure_question(
    pipeline: Pipeline,
    image: Path | IO[bytes],
    question: str,
    answer: str,
    *,
    proxy: Proxy = "answer",
    tokens: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Saliency and worth [n] of all visual tokens, or of `tokens` of them drawn by the seed."""
    picture = open_image(image)
    whole = pipeline.answer(picture, question, fast_path=False).trace["look"].result
    backbone = _Counterfactual(pipeline.backbone, whole, answer if proxy == "answer" else None)
    again = with_backbone(pipeline, backbone)

    saliencies: list[Tensor] = []  # of every run; the first has all tokens

    def log_prob(packed_BVD: Tensor) -> Tensor:
        scores = []
        for packed_VD in packed_BVD:
            backbone.tokens = _unpack(packed_VD, whole)
            trace = again.answer(picture, question, fast_path=False).trace
            saliencies.append(trace["prune"].result.saliency)
            nu = max(trace["verify"].result.scores, default=0.0)
            evidence = math.log(max(nu, NO_EVIDENCE))
            scores.append(backbone.score if proxy == "answer" else evidence)
        return torch.tensor(scores, dtype=torch.float64)

    drawn = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
    positions = drawn[:tokens].sort().values
    worth_n = counterfactual_worth(log_prob, _pack(whole), batch=8, positions=positions)
    return saliencies[0][positions], worth_n


def _pack(tokens: VisualTokens) -> Tensor:
    return torch.cat([getattr(tokens, name) for name in PER_TOKEN], dim=1)


def _unpack(packed_VD: Tensor, like: VisualTokens) -> VisualTokens:
    widths = [getattr(like, name).shape[1] for name in PER_TOKEN]
    parts = dict(zip(PER_TOKEN, packed_VD.split(widths, dim=1), strict=True))
    return dataclasses.replace(like, **parts)


class _Counterfactual:
    """A backbone that returns given tokens and, instead of generating, scores the correct answer.

    The low-resolution image, texts and prompts are the same in most counterfactuals, so each is
    computed once.
    """

    def __init__(self, backbone: Backbone, tokens: VisualTokens, answer: str | None) -> None:
        self.backbone, self.tokens, self.answer = backbone, tokens, answer
        self.score = 0.0
        self._low_res: tuple[VisualTokens, int] | None = None
        self._scores: dict[str, float] = {}
        self._texts: dict[tuple[str, ...], EncodedTexts] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backbone, name)

    def encode_low_res(
        self, image: Image.Image, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        if self._low_res is None:
            self._low_res = self.backbone.encode_low_res(image, scales)
        return self._low_res

    def encode_high_res(
        self, image: Image.Image, low_res: VisualTokens, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        return self.tokens, 0

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        key = tuple(texts)
        if key not in self._texts:
            self._texts[key] = self.backbone.encode_texts(texts)
        return self._texts[key]

    def generate(self, prompt: str, decoding: Decoding, visual: Tensor | None = None) -> Completion:
        if self.answer is not None:
            if visual is not None or prompt not in self._scores:
                self._scores[prompt] = self.backbone.log_prob(prompt, self.answer, visual)
            self.score = self._scores[prompt]
        num_scored = len(decoding.candidates) + 1 if decoding.candidates else 0
        return Completion("", 0, 0, 0, (0.0,) * num_scored)
