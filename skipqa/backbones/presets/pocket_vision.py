"""The vision half of the pocket backbone: EfficientNet-Lite2, and a tagger where one was trained.

Enters: an image. Leaves: visual tokens with evidence over the concepts, and the FLOPs. The
encoder was trained to classify whole images; here its classifier is applied to every cell of the
feature map, so that each token carries a distribution over concepts. It knows no question.

Shapes: B batch, F features, V = G * G cells of the finest scale, C concepts, T the tagger's
names, d text width.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from skipqa.assets import Report
from skipqa.backbones import concepts
from skipqa.backbones.device import chosen_device
from skipqa.backbones.networks import efficientnet_lite
from skipqa.backbones.text_encoder import MiniLm
from skipqa.backbones.weights import convert, loading
from skipqa.config import EncodeConfig
from skipqa.nn import cell_tagger as cells
from skipqa.nn import tagger as tags
from skipqa.nn.cell_tagger import CellTagger
from skipqa.nn.tagger import Tagger
from skipqa.types import SeenWords, VisualTokens

NATIVE_CELLS = 8  # cells per side of the view that the network was trained on, 256 / 32
NUM_WORDS = 12  # per image


class Recognised(NamedTuple):
    """What the feature maps of B images show."""

    probs_BVC: Tensor  # each row a distribution
    overview_BC: Tensor  # the distribution of the whole image
    flops: int  # per image
    # What words are chosen by: probabilities of the encoder's own classes and of the tagger's names
    classes_BC: Tensor
    tags_BT: Tensor | None = None


class PocketVision:
    """Evidence over the classifier's own classes. The network is loaded on first use."""

    def __init__(
        self,
        config: EncodeConfig,
        texts: MiniLm,
        report: Report = lambda _: None,
        delta: Path | None = None,
    ) -> None:
        """`texts` embeds the names of the concepts. `delta` is the file of what fine-tuning added
        to the published weights."""
        self.config = config
        self.texts = texts
        self.report = report
        self.delta = delta

    @cached_property
    def folder(self) -> Path:
        """Where the converted weights are; they are made the first time."""
        return convert.vision(self.report, self.delta)

    @cached_property
    def network(self) -> efficientnet_lite.EfficientNetLite:
        """Its trunk on the device; the classifier, which reads maps, on the CPU with them."""
        network = loading.load(efficientnet_lite.EfficientNetLite, self.folder)
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        network.to(self._device).classifier.cpu()
        return network

    @cached_property
    def _device(self) -> torch.device:
        return chosen_device()

    def whole_on(self, device: torch.device) -> Self:
        """A copy with all its networks there, the classifier too."""
        _ = self.network  # loaded, so that the copy has it
        moved = copy.deepcopy(self)
        for part in vars(moved).values():
            if isinstance(part, nn.Module):
                part.to(device)
        return moved

    def _map(self, image: Image.Image, scale: int) -> Tensor:
        """[1, F, h, w]"""
        return self.network(pixels(image, scale).to(self._device)).cpu()

    @cached_property
    def classes(self) -> concepts.Concepts:
        """What the classifier was trained to name."""
        return concepts.load(lambda names: self.texts.encode(names).embeddings, self.report)

    @property
    def concepts(self) -> concepts.Concepts:
        return self.classes

    @torch.inference_mode()
    def encode_low_res(
        self, image: Image.Image, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        """Tokens of the image at the first scale, and as `low_res` the features that the drafter
        reads: the same map pooled to `NATIVE_CELLS` per side."""
        scale = (scales or self.config.scales)[0]
        map_1Fhw = self._map(image, scale)
        # The drafter reads a fixed number of cells, whatever the scale
        coarse_1Fhw = F.adaptive_avg_pool2d(map_1Fhw, NATIVE_CELLS)
        tokens, flops = self._tokens([map_1Fhw], coarse_1Fhw[0].flatten(1).T)
        return tokens, flops + self._trunk_flops(scale)

    @torch.inference_mode()
    def encode_high_res(
        self, image: Image.Image, low_res: VisualTokens, scales: Sequence[int] = ()
    ) -> tuple[VisualTokens, int]:
        """Tokens of the last scale, the finest, with the evidence of all scales. The map of the
        first scale is taken from `low_res` and not computed again."""
        finer = (scales or self.config.scales)[1:]
        if not finer:
            return low_res, 0
        assert low_res.drafter_features is not None
        first_1Fhw = low_res.features.T.unflatten(1, (low_res.grid, low_res.grid))[None]
        maps = [first_1Fhw, *(self._map(image, scale) for scale in finer)]
        tokens, flops = self._tokens(maps, low_res.drafter_features)
        return tokens, flops + sum(map(self._trunk_flops, finer))

    def _tokens(self, maps: Sequence[Tensor], low_res_NF: Tensor) -> tuple[VisualTokens, int]:
        """One token per cell of the last map, the finest, with the evidence of all maps."""
        recognised = self.recognise(maps)
        [probs_VC], [overview_C] = recognised.probs_BVC, recognised.overview_BC
        meaning_VD = probs_VC @ self.concepts.embeddings
        tokens = VisualTokens(
            features=maps[-1][0].flatten(1).T,
            concept_probs=probs_VC,
            meaning=F.normalize(meaning_VD, dim=-1),
            overview=overview_C,
            grid=maps[-1].shape[-1],
            drafter_features=low_res_NF,
            words=self._words(recognised),
        )
        return tokens, recognised.flops + 2 * tokens.concept_probs.numel() * meaning_VD.shape[1]

    @torch.inference_mode()
    def pooled(self, image: Image.Image) -> Tensor:
        """[2 F]: what a tagger reads of the whole image, at the first scale."""
        return tags.pooled(self._map(image, self.config.scales[0]).flatten(2).transpose(1, 2))[0]

    def meanings(self, names: Sequence[str], kinds: Sequence[str]) -> Tensor:
        """[names, d]: embeddings of names as they are said of an image."""
        said = [tags.said_of_a_picture(name, kind) for name, kind in zip(names, kinds, strict=True)]
        return self.texts.encode(said).embeddings

    def recognise(self, maps: Sequence[Tensor]) -> Recognised:
        """Of maps [B, F, h, w], the finest last: the classes' logits averaged over them; the
        overview is that of the first."""
        logits = [self._classify(map_BFhw) for map_BFhw in maps]
        grid = maps[-1].shape[-1]
        mixed = [_resampled(self._mix_with_surroundings(one), grid) for one in logits]
        num_cells = sum(one[0, 0].numel() for one in logits)
        overview_BC = logits[0].mean((2, 3)).softmax(-1)
        return Recognised(
            probs_BVC=torch.stack(mixed).mean(0).softmax(-1),
            overview_BC=overview_BC,
            flops=2 * num_cells * self.network.classifier.weight.numel(),
            classes_BC=overview_BC,
        )

    def _words(self, recognised: Recognised) -> SeenWords | None:
        """Of one image."""
        return None

    def _classify(self, map_BFhw: Tensor) -> Tensor:
        """[B, C, h, w]: the logits of each cell."""
        return self.network.classifier(map_BFhw.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def _mix_with_surroundings(self, logits_BChw: Tensor) -> Tensor:
        """Blend each cell's logits with those of the native-sized view around it.

        A single cell sees texture; the classifier was trained on the mean over a view.
        """
        size = logits_BChw.shape[-1]
        views = F.avg_pool2d(logits_BChw, min(NATIVE_CELLS, size), stride=2)
        views = F.interpolate(views, (size, size), mode="bilinear")
        return torch.lerp(views, logits_BChw, self.config.locality)

    def _trunk_flops(self, scale: int) -> int:
        """FLOPs of a feature map, without the classifier."""
        cells = math.ceil(scale / self.config.cell) ** 2
        classified = 2 * cells * self.network.classifier.weight.numel()
        return efficientnet_lite.flops(self.network, scale) - classified


class TaggedVision(PocketVision):
    """Evidence over the classes and a trained tagger's names, and words for the whole image."""

    def __init__(
        self,
        config: EncodeConfig,
        texts: MiniLm,
        tagger: Tagger,
        report: Report = lambda _: None,
        delta: Path | None = None,
        cell_tagger: CellTagger | None = None,
    ) -> None:
        """`cell_tagger` knows single cells by some of the tagger's names."""
        super().__init__(config, texts, report, delta)
        self.tagger = tagger
        self._judge_cells_by(cell_tagger)

    def with_cells(self, cell_tagger: CellTagger | None) -> Self:
        """The same with another tagger of single cells, or with none."""
        other = copy.copy(self)
        other._judge_cells_by(cell_tagger)
        return other

    def _judge_cells_by(self, cell_tagger: CellTagger | None) -> None:
        self.cell_tagger = cell_tagger
        self._columns: list[int] = []  # of the tagger's names, those of single cells
        if cell_tagger is not None:
            self._columns = cell_tagger.config.columns(self.tagger.config)

    @cached_property
    def concepts(self) -> concepts.Concepts:
        config = self.tagger.config
        plain = [name for name, kind in zip(config.names, config.kinds, strict=True) if not kind]
        known = concepts.common_things(plain, self.report)
        return concepts.with_tags(self.classes, self.tagger, known)

    def recognise(self, maps: Sequence[Tensor]) -> Recognised:
        """A tag has its largest probability over all maps: a large object is recognised in the
        coarse map, a small one in a part of the fine map. Where a cell tagger was trained, tokens
        at high resolution have its probabilities for the names that it knows, and the image as a
        whole has the same as before."""
        classes = super().recognise(maps)
        views = [tag_views(self.tagger, map_BFhw) for map_BFhw in maps]
        probs_BT = surest(views)
        grid = maps[-1].shape[-1]
        tagged_BVT = torch.stack([_resampled(one, grid) for one in views]).amax(0)
        num_views = sum(one[0, 0].numel() for one in views)
        flops = classes.flops + tags.flops(self.tagger.config, num_views)
        if self.cell_tagger is not None and len(maps) > 1:
            tagged_BVT[..., self._columns] = self.cell_tagger.probs(maps[0], maps[-1])
            flops += cells.flops(self.cell_tagger.config, grid * grid)
        return Recognised(
            probs_BVC=_joined(classes.probs_BVC, tagged_BVT),
            overview_BC=_joined(classes.overview_BC, probs_BT),
            flops=flops,
            classes_BC=classes.overview_BC,
            tags_BT=probs_BT,
        )

    def _words(self, recognised: Recognised) -> SeenWords:
        """The most probable tags and classes of the whole image."""
        assert recognised.tags_BT is not None
        [probs_T], [overview_C] = recognised.tags_BT, recognised.classes_BC
        best = torch.cat((probs_T, overview_C)).topk(NUM_WORDS)
        embeddings = torch.cat((self.tagger.meanings, self.classes.embeddings))
        num_tags = len(probs_T)
        names = tuple(
            self.tagger.config.word(i) if i < num_tags else self.classes[i - num_tags].name
            for i in best.indices.tolist()
        )
        return SeenWords(names, best.values, embeddings[best.indices])


def tag_views(tagger: Tagger, map_BFhw: Tensor) -> Tensor:
    """[B, T, h', w']: the tagger's probabilities for every native-sized view of the maps."""
    return tagger.judge(tags.pool_views(map_BFhw, NATIVE_CELLS)).sigmoid().permute(0, 3, 1, 2)


def surest(views: Iterable[Tensor]) -> Tensor:
    """[B, T]: the largest probability of each tag over the `tag_views` of several maps."""
    return torch.stack([views_BThw.amax((2, 3)) for views_BThw in views]).amax(0)


def resized(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """[S, S, 3]: the whole image as a square."""
    small = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(small)


def pixels(image: Image.Image, size: int) -> Tensor:
    """[1, 3, S, S] in [-1, 1]."""
    scaled = torch.from_numpy(resized(image, size).astype(np.float32)) / 127.5 - 1
    return scaled.permute(2, 0, 1)[None].contiguous(memory_format=torch.channels_last)


def _resampled(values_BChw: Tensor, grid: int) -> Tensor:
    """[B, V, C]: the maps interpolated at the cells of another grid."""
    return F.interpolate(values_BChw, (grid, grid), mode="bilinear").flatten(2).transpose(1, 2)


def _joined(classes: Tensor, tagged: Tensor) -> Tensor:
    """One distribution over classes and tags: a probable tag takes from all classes alike."""
    joined = torch.cat((classes, tagged), dim=-1)
    return joined / joined.sum(-1, keepdim=True)
