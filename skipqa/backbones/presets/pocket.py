"""The pocket backbone: EfficientNet-Lite2, MiniLM and SmolLM2-135M on a laptop's CPU.

Enters: an image, texts, a prompt. Leaves: visual tokens with their evidence, text states and
embeddings, a completion, each with the FLOPs it cost. It knows the three networks, what training
added to them, and nothing of the stages that use them.

Shapes: V = G * G cells of the finest scale, C concepts, d text width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
from skipqa.backbones import concepts
from skipqa.backbones import text_encoder as minilm
from skipqa.backbones.backbone import EncodedTexts
from skipqa.backbones.generation.mixin import GenerationMixin
from skipqa.backbones.networks import efficientnet_lite, llama
from skipqa.backbones.segmenter import Segmenter
from skipqa.backbones.text_encoder import MiniLm
from skipqa.backbones.weights import convert, loading
from skipqa.config import EncodeConfig
from skipqa.nn import tagger as tags
from skipqa.nn.tagger import Tagger
from skipqa.types import SeenWords, VisualTokens, Widths

NATIVE_CELLS = 8  # the view that the network was trained on, 256 / 32
NUM_WORDS = 12  # for a picture
END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class FineTuned:
    """What training added: more words to see with, and differences from published networks."""

    tagger: Tagger | None = None
    vision: Path | None = None
    question: Path | None = None
    reader: Path | None = None


class Pocket(GenerationMixin):
    """Networks load when first used: a drafted answer never pays for the decoder."""

    projector = None  # its decoder reads words alone

    def __init__(
        self,
        config: EncodeConfig,
        report: Report = lambda _: None,
        learned: FineTuned | None = None,
    ) -> None:
        self.config = config
        self.report = report
        self.learned = learned or FineTuned()
        self.texts = MiniLm(report)
        self.questions = MiniLm(report, self.learned.question)
        self.segmenter = Segmenter(report)

    @property
    def widths(self) -> Widths:
        vision, decoder = efficientnet_lite.LITE2.features, llama.SMOLLM2_135M.width
        return Widths(self.config.num_tokens, NATIVE_CELLS**2, vision, minilm.WIDTH, decoder)

    @cached_property
    def vision(self) -> efficientnet_lite.EfficientNetLite:
        folder = convert.vision(self.report, self.learned.vision)
        network = loading.load(efficientnet_lite.EfficientNetLite, folder)
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
        convert.vision(self.report, self.learned.vision)
        convert.text(self.report)
        _ = self._decoder_folder, self.concepts

    @torch.inference_mode()
    def encode_low_res(
        self, image: Image.Image, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        scale = (scales or self.config.scales)[0]
        map_1Fhw = self.vision(_pixels(image, scale))
        # As many cells as the drafter knows, whatever the scale
        coarse_1Fhw = F.adaptive_avg_pool2d(map_1Fhw, NATIVE_CELLS)
        tokens, flops = self._tokens([map_1Fhw], coarse_1Fhw[0].flatten(1).T)
        return tokens, flops + self._trunk_flops(scale)

    @torch.inference_mode()
    def encode_high_res(
        self, image: Image.Image, low_res: VisualTokens, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        finer = (scales or self.config.scales)[1:]
        if not finer:
            return low_res, 0
        assert low_res.low_res is not None
        seen_1Fhw = low_res.features.T.unflatten(1, (low_res.grid, low_res.grid))[None]
        maps = [seen_1Fhw, *(self.vision(_pixels(image, scale)) for scale in finer)]
        tokens, flops = self._tokens(maps, low_res.low_res)
        return tokens, flops + sum(map(self._trunk_flops, finer))

    def _tokens(self, maps: Sequence[Tensor], low_res_NF: Tensor) -> tuple[VisualTokens, int]:
        """A token for each cell of the last map, the finest, with the evidence of all.

        The tower's own classes are averaged over the maps. A name of the tagger's counts as far
        as the surest map has it: what fills the picture is seen whole, what is small in a part.
        """
        grid = maps[-1].shape[-1]
        logits = [self._classify(map_1Fhw) for map_1Fhw in maps]
        mixed = [_spread(self._mix_with_surroundings(one), grid) for one in logits]
        evidence_VC = torch.stack(mixed).mean(0).softmax(-1)
        overview_C = logits[0].mean((0, 2, 3)).softmax(-1)
        num_cells = sum(one[0, 0].numel() for one in logits)
        flops = 2 * num_cells * self.vision.classifier.weight.numel()
        words = None
        if (tagger := self.learned.tagger) is not None:
            views = [tag_views(tagger, map_1Fhw) for map_1Fhw in maps]
            probs_T = surest(views)[0]
            words = self._words(tagger, probs_T, overview_C)
            known = torch.tensor([bool(kind) for kind in tagger.config.kinds])  # to be looked up
            tagged_VT = torch.stack([_spread(one, grid) for one in views]).amax(0)
            evidence_VC = _joined(evidence_VC, tagged_VT[:, known])
            overview_C = _joined(overview_C, probs_T[known])
            flops += tags.flops(tagger.config, sum(one[0, 0].numel() for one in views))
        meaning_VD = evidence_VC @ self.concepts.embeddings
        flops += 2 * evidence_VC.numel() * meaning_VD.shape[1]
        tokens = VisualTokens(
            features=maps[-1][0].flatten(1).T,
            evidence=evidence_VC,
            meaning=F.normalize(meaning_VD, dim=-1),
            overview=overview_C,
            grid=grid,
            low_res=low_res_NF,
            words=words,
        )
        return tokens, flops

    def _classify(self, map_1Fhw: Tensor) -> Tensor:
        """[1, C, h, w]: the logits of each cell."""
        return self.vision.classifier(map_1Fhw.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def _trunk_flops(self, scale: int) -> int:
        """Of a map, not yet classified."""
        cells = math.ceil(scale / self.config.cell) ** 2
        classified = 2 * cells * self.vision.classifier.weight.numel()
        return efficientnet_lite.flops(self.vision, scale) - classified

    def _words(self, tagger: Tagger, probs_T: Tensor, overview_C: Tensor) -> SeenWords:
        """The best of what the tagger and the tower's own classes say of the whole picture."""
        best = torch.cat((probs_T, overview_C)).topk(NUM_WORDS)
        embeddings = torch.cat((tagger.meanings, self.classes.embeddings))
        num_tags = len(probs_T)
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

    def embed_prompt(self, prompt: str, visual: Tensor | None = None) -> Tensor:
        """A completion goes on with its last line."""
        assert visual is None
        return self.decoder.embedding(torch.tensor([self.decoder_tokenizer.encode(prompt).ids]))

    def as_answer(self, text: str) -> list[int]:
        written = self.decoder_tokenizer.encode(f" {text}").ids if text else []
        return [*written, self._end]

    @cached_property
    def _end(self) -> int:
        return int(self.decoder_tokenizer.get_vocab()[END])

    @cached_property
    def ends(self) -> list[int]:
        """Tokens that end a line or a text; the byte-level vocabulary writes a newline as Ċ."""
        vocabulary = self.decoder_tokenizer.get_vocab()
        ends = (END, "<|endoftext|>")
        return [index for token, index in vocabulary.items() if "Ċ" in token or token in ends]


def tag_views(tagger: Tagger, map_BFhw: Tensor) -> Tensor:
    """[B, names, h', w']: the tagger's verdict, in [0, 1], on every native-sized view of maps."""
    return tagger.judge(tags.pool_views(map_BFhw, NATIVE_CELLS)).sigmoid().permute(0, 3, 1, 2)


def surest(views: Iterable[Tensor]) -> Tensor:
    """[B, names] of `tag_views` of several maps: a name counts as far as the surest view has it."""
    return torch.stack([views_BThw.amax((2, 3)) for views_BThw in views]).amax(0)


def _spread(values_1Chw: Tensor, grid: int) -> Tensor:
    """[V, C]: the map read at the cells of another grid."""
    return F.interpolate(values_1Chw, (grid, grid), mode="bilinear")[0].flatten(1).T


def _joined(classes: Tensor, tagged: Tensor) -> Tensor:
    """One distribution: a tag that is sure takes its share from the tower's own classes."""
    joined = torch.cat((classes, tagged), dim=-1)
    return joined / joined.sum(-1, keepdim=True)


def _pixels(image: Image.Image, size: int) -> Tensor:
    """[1, 3, S, S] in [-1, 1]; the whole image, its aspect ratio given up."""
    small = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    pixels = torch.from_numpy(np.asarray(small, dtype=np.float32)) / 127.5 - 1
    return pixels.permute(2, 0, 1)[None].contiguous(memory_format=torch.channels_last)
