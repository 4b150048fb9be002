"""A backbone that encodes recent texts once: the same questions and titles are encoded again and
again where budgets, components or counterfactuals are compared.

Enters: any backbone. Leaves: a backbone with the same answers and the same FLOPs, as if each text
were encoded by itself. It knows nothing of who asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from PIL import Image
from torch import Tensor

from skipqa.backbones.backbone import Backbone, Completion, DecoderWords, Decoding, EncodedTexts
from skipqa.backbones.concepts import Concepts
from skipqa.backbones.segmenter import Segmenter
from skipqa.nn.projector import Projector
from skipqa.types import VisualTokens, Widths

RECENT = 4_096  # texts


class CachedBackbone:
    """All but the encoding of texts is the backbone's own."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self._encode = lru_cache(maxsize=RECENT)(lambda text: backbone.encode_texts([text]))
        self._encode_pair = lru_cache(maxsize=RECENT)(self._pair)

    @property
    def concepts(self) -> Concepts:
        return self.backbone.concepts

    @property
    def widths(self) -> Widths:
        return self.backbone.widths

    @property
    def projector(self) -> Projector | None:
        return self.backbone.projector

    @property
    def segmenter(self) -> Segmenter:
        return self.backbone.segmenter

    def encode_low_res(
        self, image: Image.Image, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        return self.backbone.encode_low_res(image, scales)

    def encode_high_res(
        self, image: Image.Image, low_res: VisualTokens, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        return self.backbone.encode_high_res(image, low_res, scales)

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        parts = [self._encode(text) for text in texts]
        return _joined(parts) if parts else self.backbone.encode_texts(texts)

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> EncodedTexts:
        parts = [self._encode_pair(pair) for pair in pairs]
        if not parts:
            return self.backbone.encode_pairs(pairs)
        return EncodedTexts(torch.cat([e for e, _ in parts]), (), sum(flops for _, flops in parts))

    def _pair(self, pair: tuple[str, str]) -> tuple[Tensor, int]:
        """Without the states, which nobody reads."""
        encoded = self.backbone.encode_pairs([pair])
        return encoded.embeddings, encoded.flops

    def encode_for_drafter(self, question: str) -> EncodedTexts | None:
        return self.backbone.encode_for_drafter(question)

    def decoder_words(
        self, texts: Sequence[str], layers: int, longest: int | None = None
    ) -> DecoderWords:
        return self.backbone.decoder_words(texts, layers, longest)

    def generate(self, prompt: str, decoding: Decoding, visual: Tensor | None = None) -> Completion:
        return self.backbone.generate(prompt, decoding, visual)

    def loglikelihood(self, prompt: str, answers: Sequence[str]) -> tuple[list[float], int]:
        return self.backbone.loglikelihood(prompt, answers)

    def log_prob(self, prompt: str, answer: str, visual: Tensor | None = None) -> float:
        return self.backbone.log_prob(prompt, answer, visual)


def uncached(backbone: Backbone) -> Backbone:
    """For who encodes many texts at once, or needs the backbone itself."""
    return backbone.backbone if isinstance(backbone, CachedBackbone) else backbone


def _joined(parts: Sequence[EncodedTexts]) -> EncodedTexts:
    return EncodedTexts(
        torch.cat([part.embeddings for part in parts]),
        tuple(part.states[0] for part in parts),
        sum(part.flops for part in parts),
        tuple(characters for part in parts for characters in part.characters),
    )
