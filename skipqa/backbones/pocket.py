"""The pocket backbone: EfficientNet-Lite2, MiniLM and SmolLM2-135M on a laptop's CPU.

Enters: an image, texts, a prompt. Leaves: visual tokens with their evidence, text states and
embeddings, a completion, each with the FLOPs it cost. It knows the three networks and
nothing of the stages that use them.

Shapes: V = G * G cells of the finest scale, C concepts, d text width.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from skipqa.assets import Report
from skipqa.backbones import concepts, convert, efficientnet_lite, llama, loading, minilm
from skipqa.backbones.backbone import Completion, EncodedTexts
from skipqa.backbones.minilm import MiniLm
from skipqa.backbones.quoting import SpanConstraint, Verbatim
from skipqa.backbones.segmenter import Segmenter
from skipqa.config import EncodeConfig
from skipqa.types import VisualTokens, Widths

NATIVE_CELLS = 8  # the view that the network was trained on, 256 / 32


class Pocket:
    """Networks load when first used: a drafted answer never pays for the decoder."""

    projector = None  # its decoder reads words alone

    def __init__(self, config: EncodeConfig, report: Report = lambda _: None) -> None:
        self.config = config
        self.report = report
        self.texts = MiniLm(report)
        self.segmenter = Segmenter(report)

    @property
    def widths(self) -> Widths:
        vision, decoder = efficientnet_lite.LITE2.features, llama.SMOLLM2_135M.width
        return Widths(self.config.num_tokens, vision, minilm.WIDTH, decoder)

    @cached_property
    def vision(self) -> efficientnet_lite.EfficientNetLite:
        network = loading.load(efficientnet_lite.EfficientNetLite, convert.vision(self.report))
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @cached_property
    def decoder(self) -> llama.Llama:
        return loading.load(lambda: llama.Llama(llama.SMOLLM2_135M), convert.decoder(self.report))

    @cached_property
    def decoder_tokenizer(self) -> Tokenizer:
        return loading.load_tokenizer(convert.decoder(self.report))

    @cached_property
    def concepts(self) -> concepts.Concepts:
        return concepts.load(lambda names: self.encode_texts(names).embeddings, self.report)

    def prepare(self) -> None:
        """Download and convert now, rather than at the first question, all but the segmenter."""
        for part in (convert.vision, convert.text, convert.decoder):
            part(self.report)
        _ = self.concepts

    @torch.inference_mode()
    def encode_image(
        self, image: Image.Image, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        """The image at every scale; evidence of the scales averaged on the finest grid.

        `scales`, ascending, stand in for the config's.
        """
        scales = scales or self.config.scales
        grid = scales[-1] // self.config.cell
        total, overview, flops = torch.zeros(()), torch.empty(0), 0
        for scale in scales:
            map_1Fhw = self.vision(_pixels(image, scale))
            features_hwF = map_1Fhw[0].permute(1, 2, 0)
            logits_1Chw = self.vision.classifier(features_hwF).permute(2, 0, 1)[None]
            if scale == scales[0]:
                overview = logits_1Chw.mean((2, 3))[0].softmax(-1)
            mixed = self._mix_with_surroundings(logits_1Chw)
            total = total + F.interpolate(mixed, (grid, grid), mode="bilinear")
            flops += efficientnet_lite.flops(self.vision, scale)
        logits_VC = (total / len(scales))[0].flatten(1).T
        evidence_VC = logits_VC.softmax(-1)
        meaning_VD = evidence_VC @ self.concepts.embeddings
        flops += 2 * evidence_VC.numel() * meaning_VD.shape[1]
        tokens = VisualTokens(
            features=features_hwF.flatten(0, 1),
            evidence=evidence_VC,
            meaning=F.normalize(meaning_VD, dim=-1),
            overview=overview,
            grid=grid,
        )
        return tokens, flops

    def _mix_with_surroundings(self, logits_1Chw: Tensor) -> Tensor:
        """Blend each cell's logits with those of the native-sized view around it.

        A cell alone sees texture; the classifier was trained to judge the mean of a view.
        """
        size = logits_1Chw.shape[-1]
        views = F.avg_pool2d(logits_1Chw, min(NATIVE_CELLS, size), stride=2)
        views = F.interpolate(views, (size, size), mode="bilinear")
        return torch.lerp(views, logits_1Chw, self.config.locality)

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        return self.texts.encode(texts)

    @torch.inference_mode()
    def complete(
        self,
        prompt: str,
        max_new_tokens: int,
        quote_from: Sequence[str] = (),
        avoid: Collection[str] = (),
        visual: Tensor | None = None,
    ) -> Completion:
        """The decoder's greedy completion of the prompt's last line.

        With `quote_from` it is a span of one of those texts that starts with no word of `avoid`.
        """
        assert visual is None
        ids = self.decoder_tokenizer.encode(prompt).ids
        embedded = self.decoder.embedding(torch.tensor([ids]))
        stop = self.line_ends
        spans = SpanConstraint(quote_from, self.decoder_tokenizer, stop, avoid) or None
        generated = self.decoder.generate(embedded, max_new_tokens, stop, spans)
        text = self.decoder_tokenizer.decode(generated.tokens).strip()
        return Completion(text, len(ids), len(generated.tokens), generated.flops)

    def log_probability(self, prompt: str, answer: str, visual: Tensor | None = None) -> float:
        assert visual is None
        embedded = self.decoder.embedding(torch.tensor([self.decoder_tokenizer.encode(prompt).ids]))
        wanted = self.decoder_tokenizer.encode(f" {answer}").ids
        return sum(
            self.decoder.generate(embedded, len(wanted), (), Verbatim(wanted)).log_probabilities
        )

    @cached_property
    def line_ends(self) -> list[int]:
        """Tokens that end a line or a text; the byte-level vocabulary writes a newline as Ċ."""
        vocabulary = self.decoder_tokenizer.get_vocab()
        ends = ("<|im_end|>", "<|endoftext|>")
        return [index for token, index in vocabulary.items() if "Ċ" in token or token in ends]


def _pixels(image: Image.Image, size: int) -> Tensor:
    """[1, 3, S, S] in [-1, 1]; the whole image, its aspect ratio given up."""
    small = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    pixels = torch.from_numpy(np.asarray(small, dtype=np.float32)) / 127.5 - 1
    return pixels.permute(2, 0, 1)[None].contiguous(memory_format=torch.channels_last)
