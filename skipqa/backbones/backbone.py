"""What the stages ask of a backbone, whichever networks it is made of.

Enters: an image, texts, a prompt. Leaves: visual tokens with their evidence, text states and
embeddings, a completion, each with the FLOPs it cost. What leaves is on the CPU in float32,
wherever the networks run: the stages' own products are small.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from PIL import Image
from torch import Tensor

from skipqa.backbones.concepts import Concepts
from skipqa.backbones.segmenter import Segmenter
from skipqa.nn.projector import Projector
from skipqa.types import VisualTokens, Widths


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    embeddings: Tensor  # [B, d], unit length
    states: tuple[Tensor, ...]  # [L_b, d] each, without padding
    flops: int


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    prompt_tokens: int
    new_tokens: int
    flops: int
    # Of each answer that was to be weighed, and last of the text itself: their log-probabilities;
    # minus infinity of one that is not the best, whatever it is
    weights: tuple[float, ...] = ()


class Backbone(Protocol):
    @property
    def concepts(self) -> Concepts:
        """What the vision tower can name; a column of the evidence each."""

    @property
    def widths(self) -> Widths:
        """Known before any weights are read."""

    @property
    def projector(self) -> Projector | None:
        """Visual tokens as input tokens of the decoder; None where nothing was trained for that."""

    @property
    def segmenter(self) -> Segmenter:
        """Boxes in a picture; its network is read when the first one is asked for."""

    def encode_low_res(
        self, image: Image.Image, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        """The picture at the first of the scales, which is what a drafter looks at, and what that
        cost. `scales`, ascending, stand in for the backbone's own."""

    def encode_high_res(
        self, image: Image.Image, low_res: VisualTokens, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        """The picture at the finer scales, too, and what they cost; the glance itself, for
        nothing, where there are none."""

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts: ...

    def encode_for_drafter(self, question: str) -> EncodedTexts | None:
        """By an encoder that was trained together with the drafter; None where it has none of
        its own and reads what `encode_texts` gives."""

    def generate(
        self,
        prompt: str,
        max_new_tokens: int,
        quote_from: Sequence[str] = (),
        avoid: Collection[str] = (),
        visual: Tensor | None = None,
        candidates: Sequence[tuple[str, float]] = (),
    ) -> Completion:
        """The decoder's greedy completion.

        With `quote_from` it is a span of one of those texts that starts with no word of `avoid`.
        `visual`, as the projector made them, stand in the prompt at `IMAGE`. Answers `beside` it
        are weighed with it, each with what else speaks for it, to find the best of all.
        """

    def loglikelihood(self, prompt: str, answers: Sequence[str]) -> tuple[list[float], int]:
        """The log-probability of each answer as the whole completion, and the FLOPs of that."""

    def log_prob(self, prompt: str, answer: str, visual: Tensor | None = None) -> float:
        """Of `answer` in the place of the completion, in nats."""


IMAGE = "<image>"
