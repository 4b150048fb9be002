"""What the larger backbones have in common: a CLIP for images, MiniLM for texts, a Vicuna decoder.

Enters: an image, texts, a prompt. Leaves: visual tokens with their evidence, text states and
embeddings, a completion, each with the FLOPs it cost. Where the weights come from is left to the
subclasses (`evaclip_vicuna.py`, `llava.py`).

CLIP classifies zero-shot over the concepts that every preset has in common: the evidence of a
patch is the softmax of its similarities to "a photo of a NAME.", and the stages that read
evidence work as they do in `pocket`.

Shapes: V patches, C concepts, J width of CLIP's joint space, d text width, T prompt tokens.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from skipqa.assets import Report
from skipqa.backbones import concepts
from skipqa.backbones import text_encoder as minilm
from skipqa.backbones.backbone import IMAGE, EncodedTexts
from skipqa.backbones.generation.mixin import GenerationMixin
from skipqa.backbones.networks import clip, llama
from skipqa.backbones.networks.clip import EncodedImage
from skipqa.backbones.segmenter import Segmenter
from skipqa.backbones.text_encoder import MiniLm
from skipqa.backbones.weights import hub, lora
from skipqa.config import EncodeConfig
from skipqa.nn.projector import Projector
from skipqa.types import VisualTokens, Widths

# By which CLIP and EVA-CLIP normalise pixels
MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)
NAMES_PER_BATCH = 100  # class names per batch of CLIP's text encoder

# The chat template that Vicuna, and LLaVA-1.6 with it, was tuned on. The paper writes its prompts
# with [INST], the template of another family of models.
CONVERSATION = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions. USER: {prompt} ASSISTANT:"
)


class ClipVicuna(GenerationMixin):
    """Networks are loaded on first use: a drafted answer never pays for the decoder."""

    preset: ClassVar[str]
    repositories: ClassVar[tuple[hub.Repository, hub.Repository]]  # the decoder, CLIP

    def __init__(
        self,
        config: EncodeConfig,
        weights: Path | None = None,
        report: Report = lambda _: None,
        *,
        projector: Projector | None = None,
        adapter: Path | None = None,
    ) -> None:
        """`weights` is a folder of the repositories. `projector` and the folder of a LoRA `adapter`
        are what was trained on top."""
        self.config = config
        self.report = report
        self.folders = hub.locate(self.preset, self.repositories, weights)
        self.device, self.dtype = hub.device_and_dtype()
        self.texts = MiniLm(report)
        self.segmenter = Segmenter(report)
        self._trained, self._adapter = projector, adapter
        self.merged_per_layer = 0  # tokens, in each layer of the vision encoder

    @property
    @abstractmethod
    def clip_config(self) -> clip.ClipConfig: ...

    @property
    @abstractmethod
    def published_decoder(self) -> Any:
        """The decoder's config as transformers reads it."""

    @abstractmethod
    def read_clip(self) -> clip.Clip: ...

    @abstractmethod
    def read_decoder(self) -> llama.Llama: ...

    def read_projector(self) -> Projector | None:
        """The one that was published with the decoder, if any."""
        return None

    @cached_property
    def decoder_config(self) -> llama.LlamaConfig:
        return llama_config(self.published_decoder)

    @property
    def widths(self) -> Widths:
        vision, decoder = self.clip_config.vision.width, self.decoder_config.width
        tokens = self.config.num_tokens
        return Widths(tokens, tokens, vision, minilm.WIDTH, decoder)

    @cached_property
    def projector(self) -> Projector | None:
        return self._trained if self._trained is not None else self.read_projector()

    @cached_property
    def clip(self) -> clip.Clip:
        self.report(f"reading {self.repositories[1].id}")
        with hub.reading(self.repositories[1], self.folders[1]):
            return self.read_clip()

    @cached_property
    def decoder(self) -> llama.Llama:
        self.report(f"reading {self.repositories[0].id}")
        with hub.reading(self.repositories[0], self.folders[0]):
            decoder = self.read_decoder()
        if self._adapter is not None:
            lora.merge(decoder, self._adapter, self.repositories[0].id)
        return decoder

    @cached_property
    def decoder_tokenizer(self) -> Tokenizer:
        return hub.read_tokenizer(self.folders[0])

    @cached_property
    def concepts(self) -> concepts.Concepts:
        return concepts.load(lambda names: self.encode_texts(names).embeddings, self.report)

    @cached_property
    @torch.inference_mode()
    def concept_vectors(self) -> Tensor:
        """[C, J], unit length, on the device. Not cached on disk: it takes a GPU a second."""
        tokenizer = hub.read_tokenizer(self.folders[1])
        texts = [f"a photo of a {concept.name}." for concept in self.concepts.entries]
        found = []
        for start in range(0, len(texts), NAMES_PER_BATCH):
            rows = [e.ids for e in tokenizer.encode_batch(texts[start : start + NAMES_PER_BATCH])]
            rows = [row[: self.clip_config.text.positions] for row in rows]
            longest = max(map(len, rows))
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
            ends = torch.tensor([len(row) - 1 for row in rows])
            found.append(self.clip.encode_text(ids.to(self.device), ends.to(self.device)))
        return torch.cat(found)

    @torch.inference_mode()
    def encode_low_res(
        self, image: Image.Image, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        """At one scale only, the largest: each of CLIP's patches attends to the whole image."""
        size = (scales or self.config.scales)[-1]
        encoded, encoding_flops = self._encode_image(image, size)
        names_JC = self.concept_vectors.T * self.clip.log_scale.exp()
        probs_VC = (encoded.patches[0] @ names_JC).float().softmax(-1).cpu()
        meaning_VD = probs_VC @ self.concepts.embeddings
        products = names_JC.shape[0] * (len(probs_VC) + 1) + len(probs_VC) * minilm.WIDTH
        tokens = VisualTokens(
            features=encoded.features[0].float().cpu(),
            concept_probs=probs_VC,
            meaning=F.normalize(meaning_VD, dim=-1),
            overview=(encoded.whole[0] @ names_JC).float().softmax(-1).cpu(),
            grid=size // self.clip_config.vision.patch,
        )
        return tokens, encoding_flops + 2 * products * names_JC.shape[1]

    def _encode_image(self, image: Image.Image, size: int) -> tuple[EncodedImage, int]:
        pixels, config = self._pixels(image, size), self.clip_config
        if (per_layer := self.merged_per_layer) == 0:
            return self.clip.encode_image(pixels), clip.flops(config, size)
        encoded = self.clip.encode_image_merged(pixels, per_layer)
        return encoded, clip.merged_flops(config, size, per_layer)

    def merging(self, per_layer: int) -> Self:
        """The same networks, with so many tokens merged in each layer of the vision encoder. They
        are read now, once for both."""
        for network in ("clip", "concept_vectors", "decoder"):
            getattr(self, network)
        merging = copy.copy(self)
        merging.merged_per_layer = per_layer
        return merging

    def encode_high_res(
        self, image: Image.Image, low_res: VisualTokens, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        return low_res, 0

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        return self.texts.encode(texts)

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> EncodedTexts:
        return self.texts.encode(pairs)

    def encode_for_drafter(self, question: str) -> EncodedTexts | None:
        return None

    def embed_prompt(self, prompt: str, visual: Tensor | None = None) -> Tensor:
        """[1, T, D] as one turn of a conversation."""
        return self.embed(CONVERSATION.format(prompt=prompt), visual)

    @property
    def stop_tokens(self) -> list[int]:
        return [self.published_decoder.eos_token_id]

    def answer_tokens(self, text: str) -> list[int]:
        return [*self._ids(text), *self.stop_tokens]

    def embed(self, prompt: str, visual: Tensor | None) -> Tensor:
        """[1, T, D]: the prompt's tokens, with the visual ones in place of the first `IMAGE`."""
        start = self.published_decoder.bos_token_id
        if visual is None:
            return self._embed_ids([start, *self._ids(prompt)])[None]
        before, _, after = prompt.partition(IMAGE)
        parts = [
            self._embed_ids([start, *self._ids(before)]),
            visual.to(self.device, self.dtype),
            self._embed_ids(self._ids(after)),
        ]
        return torch.cat(parts)[None]

    def _ids(self, text: str) -> list[int]:
        return self.decoder_tokenizer.encode(text, add_special_tokens=False).ids

    def _embed_ids(self, ids: list[int]) -> Tensor:
        return self.decoder.embedding(torch.tensor(ids, dtype=torch.long, device=self.device))

    def _pixels(self, image: Image.Image, size: int) -> Tensor:
        """[1, 3, S, S]: the whole image resized to a square, like LLaVA's overview image."""
        small = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
        pixels = torch.from_numpy(np.asarray(small, dtype=np.float32)) / 255
        pixels = (pixels - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
        return pixels.permute(2, 0, 1)[None].to(self.device, self.dtype)


def llama_config(published: Any) -> llama.LlamaConfig:
    """From transformers' config of a Llama."""
    c = published
    return llama.LlamaConfig(
        vocabulary=c.vocab_size,
        width=c.hidden_size,
        layers=c.num_hidden_layers,
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        ffn=c.intermediate_size,
        rope_theta=c.rope_parameters["rope_theta"],
        norm_eps=c.rms_norm_eps,
        tied=c.tie_word_embeddings,
    )
