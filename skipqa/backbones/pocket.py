"""The pocket backbone: EfficientNet-Lite2, MiniLM and SmolLM2-135M on a laptop's CPU.

Enters: an image, texts, a prompt. Leaves: visual tokens with their evidence, text states and
embeddings, a completion, each with the FLOPs it cost. It knows the three networks, what training
added to them, and nothing of the stages that use them.

Shapes: V = G * G cells of the finest scale, C concepts, d text width.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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
from skipqa.nn import tagger as tags
from skipqa.nn.tagger import Tagger
from skipqa.types import SeenWords, VisualTokens, Widths

NATIVE_CELLS = 8  # the view that the network was trained on, 256 / 32
NUM_WORDS = 12  # for a picture
END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Learned:
    """What training added: more words to see with, and differences from two published networks."""

    tagger: Tagger | None = None
    question: Path | None = None
    reader: Path | None = None


class Pocket:
    """Networks load when first used: a drafted answer never pays for the decoder."""

    projector = None  # its decoder reads words alone

    def __init__(
        self,
        config: EncodeConfig,
        report: Report = lambda _: None,
        learned: Learned | None = None,
    ) -> None:
        self.config = config
        self.report = report
        self.learned = learned or Learned()
        self.texts = MiniLm(report)
        self.questions = MiniLm(report, self.learned.question)
        self.segmenter = Segmenter(report)

    @property
    def widths(self) -> Widths:
        vision, decoder = efficientnet_lite.LITE2.features, llama.SMOLLM2_135M.width
        return Widths(self.config.num_tokens, NATIVE_CELLS**2, vision, minilm.WIDTH, decoder)

    @cached_property
    def vision(self) -> efficientnet_lite.EfficientNetLite:
        network = loading.load(efficientnet_lite.EfficientNetLite, convert.vision(self.report))
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @cached_property
    def decoder(self) -> llama.Llama:
        return loading.load(lambda: llama.Llama(llama.SMOLLM2_135M), self._decoder_folder)

    @cached_property
    def decoder_tokenizer(self) -> Tokenizer:
        return loading.load_tokenizer(self._decoder_folder)

    @cached_property
    def _decoder_folder(self) -> Path:
        return convert.decoder(self.report, self.learned.reader)

    @cached_property
    def classes(self) -> concepts.Concepts:
        """What the vision tower itself was trained to name."""
        return concepts.load(lambda names: self.encode_texts(names).embeddings, self.report)

    @cached_property
    def concepts(self) -> concepts.Concepts:
        if self.learned.tagger is None:
            return self.classes
        return concepts.with_tags(self.classes, self.learned.tagger)

    def prepare(self) -> None:
        """Download and convert now, rather than at the first question, all but the segmenter."""
        for part in (convert.vision, convert.text):
            part(self.report)
        _ = self._decoder_folder, self.concepts

    @torch.inference_mode()
    def encode_image(
        self, image: Image.Image, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        """The image at every scale; evidence of the scales averaged on the finest grid.

        `scales`, ascending, stand in for the config's.
        """
        scales = scales or self.config.scales
        grid = scales[-1] // self.config.cell
        tagger = self.learned.tagger
        total, tagged, glance_1Fhw, flops = torch.zeros(()), torch.zeros(()), torch.empty(0), 0
        for scale in scales:
            map_1Fhw = self.vision(_pixels(image, scale))
            features_hwF = map_1Fhw[0].permute(1, 2, 0)
            logits_1Chw = self.vision.classifier(features_hwF).permute(2, 0, 1)[None]
            if scale == scales[0]:  # as many cells as the drafter knows, whatever the scale
                glance_1Fhw = F.adaptive_avg_pool2d(map_1Fhw, NATIVE_CELLS)
                overview = logits_1Chw.mean((2, 3))[0].softmax(-1)
            mixed = self._mix_with_surroundings(logits_1Chw)
            total = total + F.interpolate(mixed, (grid, grid), mode="bilinear")
            flops += efficientnet_lite.flops(self.vision, scale)
            if tagger is not None:
                views_1Thw = tag_views(tagger, map_1Fhw)
                # A name counts as far as the surest scale has it: what fills the picture is seen
                # whole, what is small in a part of it.
                spread = F.interpolate(views_1Thw, (grid, grid), mode="bilinear")
                tagged = torch.maximum(tagged, spread)
                flops += tags.flops(tagger.config, views_1Thw[0, 0].numel())
        evidence_VC = (total / len(scales))[0].flatten(1).T.softmax(-1)
        words = None
        if tagger is not None:
            shares_T = tagger(glance_1Fhw.flatten(2).transpose(1, 2))[0].sigmoid()
            flops += tags.flops(tagger.config)
            words = self._words(tagger, shares_T, overview)
            looked_up = torch.tensor([bool(kind) for kind in tagger.config.kinds])
            tagged_VT = tagged[0].flatten(1).T[:, looked_up]
            evidence_VC = _joined(evidence_VC, tagged_VT)
            overview = _joined(overview, shares_T[looked_up])
        meaning_VD = evidence_VC @ self.concepts.embeddings
        flops += 2 * evidence_VC.numel() * meaning_VD.shape[1]
        tokens = VisualTokens(
            features=features_hwF.flatten(0, 1),
            evidence=evidence_VC,
            meaning=F.normalize(meaning_VD, dim=-1),
            overview=overview,
            grid=grid,
            glance=glance_1Fhw[0].flatten(1).T,
            words=words,
        )
        return tokens, flops

    def _words(self, tagger: Tagger, shares_T: Tensor, overview_C: Tensor) -> SeenWords:
        """The best of what the tagger and the tower's own classes say of the whole picture."""
        best = torch.cat((shares_T, overview_C)).topk(NUM_WORDS)
        embeddings = torch.cat((tagger.meanings, self.classes.embeddings))
        num_tags = len(shares_T)
        names = tuple(
            tagger.config.word(i) if i < num_tags else self.classes[i - num_tags].name
            for i in best.indices.tolist()
        )
        return SeenWords(names, best.values, embeddings[best.indices])

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

    def encode_for_drafter(self, question: str) -> EncodedTexts | None:
        return None if self.learned.question is None else self.questions.encode([question])

    @torch.inference_mode()
    def complete(
        self,
        prompt: str,
        max_new_tokens: int,
        quote_from: Sequence[str] = (),
        avoid: Collection[str] = (),
        visual: Tensor | None = None,
        beside: Sequence[str] = (),
    ) -> Completion:
        """The decoder's greedy completion of the prompt's last line.

        With `quote_from` it is a span of one of those texts that starts with no word of `avoid`.
        Answers `beside` it are weighed with it, after one reading of the prompt.
        """
        assert visual is None
        ids = self.decoder_tokenizer.encode(prompt).ids
        embedded = self.decoder.embedding(torch.tensor([ids]))
        stop = self.line_ends
        spans = SpanConstraint(quote_from, self.decoder_tokenizer, stop, avoid) or None
        past, spent = None, 0
        if beside:
            past, embedded = self.decoder.read(embedded[:, :-1]), embedded[:, -1:]
            spent = llama.flops(self.decoder.config, len(ids) - 1, len(ids) - 1, logits=0)
        generated = self.decoder.generate(embedded, max_new_tokens, stop, spans, past)
        text = self.decoder_tokenizer.decode(generated.tokens).strip()
        spent += generated.flops
        weights: list[float] = []
        if beside:
            answers = [self.as_answer(answer) for answer in (*beside, text)]
            weights, flops = self.decoder.weigh(embedded, answers, past)
            spent += flops
        return Completion(text, len(ids), len(generated.tokens), spent, tuple(weights))

    def weigh(self, prompt: str, answers: Sequence[str]) -> tuple[list[float], int]:
        ids = self.decoder_tokenizer.encode(prompt).ids
        embedded = self.decoder.embedding(torch.tensor([ids]))
        return self.decoder.weigh(embedded, [self.as_answer(answer) for answer in answers])

    def as_answer(self, text: str) -> list[int]:
        """What the decoder would have to write for its answer to be `text`."""
        written = self.decoder_tokenizer.encode(f" {text}").ids if text else []
        return [*written, self._end]

    def log_probability(self, prompt: str, answer: str, visual: Tensor | None = None) -> float:
        assert visual is None
        embedded = self.decoder.embedding(torch.tensor([self.decoder_tokenizer.encode(prompt).ids]))
        wanted = self.decoder_tokenizer.encode(f" {answer}").ids
        return sum(
            self.decoder.generate(embedded, len(wanted), (), Verbatim(wanted)).log_probabilities
        )

    @cached_property
    def _end(self) -> int:
        return int(self.decoder_tokenizer.get_vocab()[END])

    @cached_property
    def line_ends(self) -> list[int]:
        """Tokens that end a line or a text; the byte-level vocabulary writes a newline as Ċ."""
        vocabulary = self.decoder_tokenizer.get_vocab()
        ends = (END, "<|endoftext|>")
        return [index for token, index in vocabulary.items() if "Ċ" in token or token in ends]


def tag_views(tagger: Tagger, map_1Fhw: Tensor) -> Tensor:
    """[1, names, h, w]: the tagger's verdict on every native-sized view of a map."""
    size = min(NATIVE_CELLS, map_1Fhw.shape[-1])
    pooled = torch.cat(
        (F.avg_pool2d(map_1Fhw, size, stride=2), F.max_pool2d(map_1Fhw, size, stride=2)), dim=1
    )
    return tagger.judge(pooled[0].flatten(1).T).sigmoid().T.unflatten(1, pooled.shape[2:])[None]


def _joined(classes: Tensor, tagged: Tensor) -> Tensor:
    """One distribution: a tag that is sure takes its share from the tower's own classes."""
    joined = torch.cat((classes, tagged), dim=-1)
    return joined / joined.sum(-1, keepdim=True)


def _pixels(image: Image.Image, size: int) -> Tensor:
    """[1, 3, S, S] in [-1, 1]; the whole image, its aspect ratio given up."""
    small = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    pixels = torch.from_numpy(np.asarray(small, dtype=np.float32)) / 127.5 - 1
    return pixels.permute(2, 0, 1)[None].contiguous(memory_format=torch.channels_last)
