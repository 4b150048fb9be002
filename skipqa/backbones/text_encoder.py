"""The text encoder of every preset, for questions and passages: all-MiniLM-L6-v2.

Enters: texts. Leaves: the state of every token, a unit-length embedding per text, and the FLOPs.
The network is loaded on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
from tokenizers import Tokenizer

from skipqa import assets
from skipqa.assets import Report
from skipqa.backbones.backbone import EncodedTexts
from skipqa.backbones.device import chosen_device
from skipqa.backbones.networks import bert
from skipqa.backbones.weights import convert, loading

MAX_TEXT_TOKENS = 128
BATCH = 32  # texts per pass
# Of the encoder that reads question and passage together. A pair is longer than a passage: with
# four layers it costs as much as the passage with all six.
PAIR_LAYERS = 4
WIDTH = bert.MINILM_L6.width


class MiniLm:
    def __init__(
        self,
        report: Report = lambda _: None,
        delta: Path | None = None,
        layers: int = bert.MINILM_L6.layers,
    ) -> None:
        """`delta` is the file of what fine-tuning added to the published weights; only the first
        `layers` are used."""
        self.report = report
        self.delta = delta
        self.layers = layers

    @cached_property
    def network(self) -> bert.Bert:
        network = loading.load(lambda: bert.Bert(bert.MINILM_L6), convert.text(self.report))
        network = network.first(self.layers)
        if self.delta is not None:
            tuned = loading.tuned(network.state_dict(), self.delta)
            network.load_state_dict(tuned, assign=True)
        return network.to(chosen_device()).eval().requires_grad_(False)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        folder = assets.fetch(assets.MINILM, self.report)
        tokenizer = loading.load_tokenizer(folder)
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_TEXT_TOKENS)
        return tokenizer

    @torch.inference_mode()
    def encode(self, texts: Sequence[str | tuple[str, str]]) -> EncodedTexts:
        """A pair of texts is read as one, with a separator between them."""
        encodings = self.tokenizer.encode_batch(list(texts))
        ids = [encoding.ids for encoding in encodings]
        states = [
            state
            for start in range(0, len(ids), BATCH)
            for state in self.network.packed(ids[start : start + BATCH])
        ]
        flops = sum(bert.flops(self.network.config, len(text)) for text in ids)
        pooled = [bert.mean_pool(state[None]) for state in states]
        embeddings = torch.cat(pooled) if pooled else torch.zeros(0, WIDTH)
        characters = tuple(tuple(encoding.offsets) for encoding in encodings)
        return EncodedTexts(embeddings, tuple(states), flops, characters)
