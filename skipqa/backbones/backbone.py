"""The interface of a backbone: everything the stages use, whichever networks it is made of.

Enters: an image, texts, a prompt. Leaves: visual tokens with their evidence, text states and
embeddings, a completion, log-probabilities, each with the FLOPs it cost. All tensors that leave
are on the CPU in float32, wherever the networks run: the stages' own products are small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from PIL import Image
from torch import Tensor

from skipqa.backbones.concepts import Concepts
from skipqa.backbones.segmenter import Segmenter
from skipqa.nn.projector import Projector
from skipqa.types import VisualTokens, Widths

IMAGE = "<image>"  # where a prompt has its visual tokens


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    embeddings: Tensor  # [B, d], unit length
    states: tuple[Tensor, ...]  # [L_b, d] each, without padding
    flops: int
    # Of each state the characters of its text, from and to; none for those of no characters
    characters: tuple[tuple[tuple[int, int], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class DecoderWords:
    """Texts word by word as the decoder has them."""

    states: tuple[Tensor, ...]  # [L_b, D] each, of an early layer
    embeddings: tuple[Tensor, ...]  # [L_b, D] each, as they enter the first layer
    flops: int


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a completion is decoded. It is always the greedy one, within these constraints."""

    max_new_tokens: int
    # The completion is a span of one of these texts that starts with none of the words to avoid;
    # without texts it is free.
    quote_from: tuple[str, ...] = ()
    avoid: frozenset[str] = frozenset()
    # (answer, log-prior): scored next to a free completion to find the one with the largest
    # log-probability plus log-prior
    candidates: tuple[tuple[str, float], ...] = ()
    completion_log_prior: float = 0.0  # also added to that of a candidate that is the completion

    def __post_init__(self) -> None:
        if self.candidates and self.quote_from:
            raise ValueError("candidates are scored next to a free completion, not a quoted one")


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    prompt_tokens: int
    new_tokens: int
    flops: int
    # Of each candidate with its end token, and last of the text itself; empty without candidates.
    # Minus infinity stands for a candidate that was found unable to be the best.
    candidate_log_probs: tuple[float, ...] = ()


class Backbone(Protocol):
    @property
    def concepts(self) -> Concepts:
        """What the vision encoder can name: one column of the evidence each."""

    @property
    def widths(self) -> Widths:
        """Known before any weights are read."""

    @property
    def projector(self) -> Projector | None:
        """Maps visual tokens to input tokens of the decoder; None where none was trained."""

    @property
    def segmenter(self) -> Segmenter:
        """Boxes in an image; its network is loaded on first use."""

    def encode_low_res(
        self, image: Image.Image, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        """Visual tokens of the image at the first scale, which the drafter reads, and the FLOPs.

        `scales` are image sizes in pixels, ascending; they replace the configured ones.
        """

    def encode_high_res(
        self, image: Image.Image, low_res: VisualTokens, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        """Visual tokens of all scales together, given those of the first, and the FLOPs of the
        others. Without other scales it is `low_res` itself, for 0 FLOPs."""

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        """Each text by itself, in one batch. A batch costs the FLOPs of its texts one by one and
        gives the same numbers up to float32 rounding."""

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> EncodedTexts:
        """Each pair read as one text, by an encoder trained for that where there is one."""

    def encode_for_drafter(self, question: str) -> EncodedTexts | None:
        """By the text encoder that was fine-tuned with the drafter; None where there is none and
        the drafter reads what `encode_texts` gives."""

    def decoder_words(
        self, texts: Sequence[str], layers: int, longest: int | None = None
    ) -> DecoderWords:
        """Each text by itself, after so many of the decoder's layers; of a longer one the first
        `longest` tokens."""

    def generate(self, prompt: str, decoding: Decoding, visual: Tensor | None = None) -> Completion:
        """The decoder's greedy completion. `visual` are tokens of its width, placed at `IMAGE`, or
        in front of the prompt by a backbone whose prompts have no such place."""

    def loglikelihood(self, prompt: str, answers: Sequence[str]) -> tuple[list[float], int]:
        """The log-probability of each answer as the whole completion, end token included, and the
        FLOPs. The end token makes answers of different lengths comparable: "tea" does not count
        the probability of "tea pot"."""

    def log_prob(self, prompt: str, answer: str, visual: Tensor | None = None) -> float:
        """The log-probability of the answer's own tokens, without the end token: of a completion
        that starts with it. A measure of evidence for the answer, not for stopping there; it
        takes visual tokens, and is a measurement whose FLOPs are not counted."""
