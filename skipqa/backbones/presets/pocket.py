"""The pocket backbone: EfficientNet-Lite2, MiniLM and SmolLM2-135M on a laptop's CPU.

Enters: an image, texts, a prompt. Leaves: visual tokens with their evidence, text states and
embeddings, a completion, each with the FLOPs it cost. It puts the three networks and what
training added to them together, and knows nothing of the stages that use them. The vision half
is in `pocket_vision.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from skipqa.assets import Report
from skipqa.backbones import text_encoder as minilm
from skipqa.backbones.backbone import IMAGE, EncodedTexts
from skipqa.backbones.concepts import Concepts
from skipqa.backbones.device import chosen_device
from skipqa.backbones.generation.mixin import GenerationMixin
from skipqa.backbones.networks import efficientnet_lite, int8, llama
from skipqa.backbones.presets.pocket_vision import NATIVE_CELLS, PocketVision, TaggedVision
from skipqa.backbones.segmenter import Segmenter
from skipqa.backbones.text_encoder import PAIR_LAYERS, MiniLm
from skipqa.backbones.weights import convert, gguf_decoder, loading
from skipqa.backbones.weights.gguf_decoder import PublishedDecoder
from skipqa.config import EncodeConfig, Weights
from skipqa.nn.cell_tagger import CellTagger
from skipqa.nn.tagger import Tagger
from skipqa.types import VisualTokens, Widths

END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class PromptForm:
    """How a decoder is spoken to, in training as in answering."""

    template: str = "{prompt}"  # no chat: the completion continues the last line
    before_answer: str = " "

    def written(self, prompt: str) -> str:
        return self.template.format(prompt=prompt)

    def answer_ids(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """Without the end."""
        return list(tokenizer.encode(self.before_answer + text).ids) if text else []


@dataclass(frozen=True, slots=True)
class FineTuned:
    """What training added to the published networks: taggers, and weight deltas as files."""

    tagger: Tagger | None = None  # more names for the vision encoder's features
    vision: Path | None = None  # delta of the vision encoder
    question: Path | None = None  # delta of the text encoder whose output the drafter reads
    reader: Path | None = None  # delta of the decoder
    pairs: Path | None = None  # delta of the text encoder that reads question and passage together
    cell_tagger: CellTagger | None = None  # what single tokens show


class Pocket(GenerationMixin):
    """Networks are loaded on first use: a drafted answer never pays for the decoder."""

    projector = None  # what its decoder reads besides words comes from a fusion reader
    published: ClassVar[PublishedDecoder] = gguf_decoder.SMOLLM2
    form: ClassVar[PromptForm] = PromptForm()

    def __init__(
        self,
        config: EncodeConfig,
        report: Report = lambda _: None,
        learned: FineTuned | None = None,
        weights: Weights = "float32",
    ) -> None:
        """`weights` says how the decoder keeps its matrices."""
        self.config = config
        self.report = report
        self._weights = weights
        self.learned = learned = learned or FineTuned()
        self.published.check_base(learned.reader)
        self.texts = MiniLm(report)
        self.questions = MiniLm(report, learned.question)
        self.pairs = MiniLm(report, learned.pairs, PAIR_LAYERS)
        self.vision = (
            PocketVision(config, self.texts, report, learned.vision)
            if learned.tagger is None
            else TaggedVision(
                config, self.texts, learned.tagger, report, learned.vision, learned.cell_tagger
            )
        )
        self.segmenter = Segmenter(report)

    def with_reader(self, delta: Path) -> Pocket:
        """The same with another decoder."""
        self.published.check_base(delta)
        other = copy.copy(self)
        other.learned = replace(self.learned, reader=delta)
        for name in ("decoder", "_decoder_folder"):
            vars(other).pop(name, None)  # read anew on first use
        return other

    @property
    def widths(self) -> Widths:
        vision, decoder = efficientnet_lite.LITE2.features, self.published.config.width
        return Widths(self.config.num_tokens, NATIVE_CELLS**2, vision, minilm.WIDTH, decoder)

    @property
    def concepts(self) -> Concepts:
        return self.vision.concepts

    @cached_property
    def decoder(self) -> llama.Llama:
        config, weights = self.published.config, self.weights
        decoder = loading.load(lambda: int8.build(config, weights), self._decoder_folder)
        return decoder.to(chosen_device())

    @property
    def weights(self) -> Weights:
        """Products of integers are for a CPU; a GPU has memory for 16 bits."""
        eight_bits = self._weights == "int8"
        return "bfloat16" if eight_bits and chosen_device().type != "cpu" else self._weights

    @cached_property
    def decoder_tokenizer(self) -> Tokenizer:
        return loading.load_tokenizer(self._decoder_folder)

    @cached_property
    def _decoder_folder(self) -> Path:
        return convert.decoder(
            self.report, self.learned.reader, published=self.published, weights=self.weights
        )

    def prepare(self) -> None:
        """Download and convert everything but the segmenter now, not at the first question."""
        _ = self.vision.folder
        convert.text(self.report)
        _ = self._decoder_folder, self.concepts

    def encode_low_res(
        self, image: Image.Image, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        return self.vision.encode_low_res(image, scales)

    def encode_high_res(
        self, image: Image.Image, low_res: VisualTokens, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        return self.vision.encode_high_res(image, low_res, scales)

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        return self.texts.encode(texts)

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> EncodedTexts:
        return self.pairs.encode(pairs)

    def encode_for_drafter(self, question: str) -> EncodedTexts | None:
        return None if self.learned.question is None else self.questions.encode([question])

    def embed_prompt(self, prompt: str, visual: Tensor | None = None) -> Tensor:
        """[1, T, D], with visual tokens in place of the first `IMAGE`, or in front of all words."""
        written, tokenizer = self.form.written(prompt), self.decoder_tokenizer
        if visual is None:
            return self._embedded(tokenizer.encode(written).ids)
        before, image, after = written.partition(IMAGE)
        parts = (before, after) if image else ("", before)
        start, rest = (self._embedded(tokenizer.encode(part).ids) for part in parts)
        return torch.cat((start, visual[None].to(start), rest), dim=1)

    def _embedded(self, ids: list[int]) -> Tensor:
        embedding = self.decoder.embedding
        return embedding(torch.tensor([ids], dtype=torch.long, device=embedding.weight.device))

    def answer_tokens(self, text: str) -> list[int]:
        return [*self.form.answer_ids(text, self.decoder_tokenizer), self._end_token]

    @cached_property
    def _end_token(self) -> int:
        return int(self.decoder_tokenizer.get_vocab()[END])

    @cached_property
    def stop_tokens(self) -> list[int]:
        """Tokens that end a line or a text; the byte-level vocabulary writes a newline as Ċ."""
        vocabulary = self.decoder_tokenizer.get_vocab()
        ends = (END, "<|endoftext|>")
        return [index for token, index in vocabulary.items() if "Ċ" in token or token in ends]
