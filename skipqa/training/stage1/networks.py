"""The published networks that stage I starts from.

Leaves: the vision encoder, the text encoder, the decoder and the concepts, with their published
weights. Nothing is trained here.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from skipqa.assets import Report
from skipqa.backbones import concepts
from skipqa.backbones.concepts import Concepts
from skipqa.backbones.networks.bert import Bert
from skipqa.backbones.networks.efficientnet_lite import EfficientNetLite
from skipqa.backbones.networks.llama import SMOLLM2_135M, Llama
from skipqa.backbones.text_encoder import MiniLm
from skipqa.backbones.weights import convert, loading


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
        texts, decoder = MiniLm(report), convert.decoder(report)
        return Networks(
            vision=loading.load(EfficientNetLite, convert.vision(report)),
            text=texts.network,
            text_tokenizer=texts.tokenizer,
            decoder=loading.load(lambda: Llama(SMOLLM2_135M), decoder),
            decoder_tokenizer=loading.load_tokenizer(decoder),
            concepts=concepts.load(lambda names: texts.encode(names).embeddings, report),
        )
