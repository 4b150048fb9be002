"""The published networks that stage I, or a reader of another decoder, starts from.

Leaves: the vision encoder, the text encoder, the decoder and the concepts, with their published
weights. Nothing is trained here.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from skipqa.assets import Report
from skipqa.backbones import concepts
from skipqa.backbones.concepts import Concepts
from skipqa.backbones.networks import int8
from skipqa.backbones.networks.bert import Bert
from skipqa.backbones.networks.efficientnet_lite import EfficientNetLite
from skipqa.backbones.networks.llama import Llama
from skipqa.backbones.presets.pocket import Pocket
from skipqa.backbones.text_encoder import MiniLm
from skipqa.backbones.weights import convert, loading
from skipqa.config import Weights


@dataclass(frozen=True, slots=True)
class Networks:
    vision: EfficientNetLite
    text: Bert
    text_tokenizer: Tokenizer
    decoder: Llama
    decoder_tokenizer: Tokenizer
    concepts: Concepts  # of the vision encoder's classes

    @staticmethod
    def pocket(report: Report = lambda _: None) -> Networks:
        return Networks.of(Pocket, "float32", report)

    @staticmethod
    def of(kind: type[Pocket], weights: Weights, report: Report) -> Networks:
        """With the decoder of that backbone, in that precision."""
        published, texts = kind.published, MiniLm(report)
        decoder = convert.decoder(report, published=published, weights=weights)
        return Networks(
            vision=loading.load(EfficientNetLite, convert.vision(report)),
            text=texts.network,
            text_tokenizer=texts.tokenizer,
            decoder=loading.load(lambda: int8.build(published.config, weights), decoder),
            decoder_tokenizer=loading.load_tokenizer(decoder),
            concepts=concepts.load(lambda names: texts.encode(names).embeddings, report),
        )
