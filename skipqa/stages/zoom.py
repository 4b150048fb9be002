"""zoom: encode small salient regions on their own, where the question is about one kind of thing.

A dog in a corner of the image is a few dozen pixels wide: enough to see that it is one, not to
tell its breed. The most salient regions, if they are small, are cropped and encoded at the size
that the vision encoder was trained on, and the result joins the evidence of their tokens. That
costs one low-resolution pass per region, so it has to pay: the question must say enough about what
it is about, which a question about a whole scene does not, and the image must leave open which
concept that is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from skipqa.backbones.backbone import Backbone
from skipqa.config import ZoomConfig
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Box, ConceptPrior, Region

SMALLEST = 1e-9


class Zoom:
    def __init__(self, config: ZoomConfig, backbone: Backbone) -> None:
        self.config, self.backbone = config, backbone

    def __call__(self, state: State, record: StageRecord) -> State:
        record.kept, record.dropped = 0, len(state.regions)
        prior = state.question.concept_prior
        if prior is None or prior.information < self.config.min_information:
            record.why = "the question names no kind of thing"
            return state
        if state.budget.passages == 0:
            record.why = "nothing will be retrieved"
            return state
        if (prob := best_prob(state.kept.tokens.overview, prior)) >= self.config.sure:
            record.why = f"the image is certain enough of what it shows ({prob:.2f})"
            return state
        chosen = [
            r
            for r in range(min(self.config.regions, len(state.regions)))
            if _is_small(state.regions[r], self.config)
        ]
        if not chosen:
            record.why = "no salient region is small"
            return state
        record.kept, record.dropped = len(chosen), len(state.regions) - len(chosen)
        record.why = f"the question carries {prior.information:.1f} nats about the concept"
        return self._zoomed(state, chosen, record)

    def _zoomed(self, state: State, chosen: Sequence[int], record: StageRecord) -> State:
        embeddings, regions = self.backbone.concepts.embeddings, list(state.regions)
        tokens = state.kept.tokens
        probs_VC, meaning_VD = tokens.concept_probs.clone(), tokens.meaning.clone()
        for r in chosen:
            seen, flops = self.backbone.encode_low_res(
                crop(state.image, regions[r].box, self.config)
            )
            record.flops += flops
            members = list(regions[r].members)
            regions[r] = _joined(regions[r], seen.overview)
            joined = probs_VC[members].maximum(seen.overview)
            probs_VC[members] = joined / joined.sum(1, keepdim=True)
            meaning_VD[members] = F.normalize(probs_VC[members] @ embeddings, dim=-1)
            record.flops += 2 * joined.numel() * embeddings.shape[1]
        tokens = dataclasses.replace(tokens, concept_probs=probs_VC, meaning=meaning_VD)
        kept = dataclasses.replace(state.kept, tokens=tokens)
        return state.add(kept=kept, regions=tuple(regions))


def build(parts: Parts) -> Zoom:
    return Zoom(parts.config.zoom, parts.backbone)


def best_prob(overview_C: Tensor, prior: ConceptPrior) -> float:
    """The highest posterior of a concept, by Bayes' rule over the whole image."""
    weight_C = overview_C * prior.weights
    return float(weight_C.max() / weight_C.sum().clamp(min=SMALLEST))


def _is_small(region: Region, config: ZoomConfig) -> bool:
    left, top, right, bottom = region.box
    return max(right - left, bottom - top) < config.largest


def crop(image: Image.Image, box: Box, config: ZoomConfig) -> Image.Image:
    """A window of the image's proportions around the box, moved inside where it would stick out."""
    left, top, right, bottom = box
    side = min(1.0, max(right - left, bottom - top, config.smallest) * config.margin)

    def start(low: float, high: float) -> float:
        return min(max((low + high - side) / 2, 0.0), 1.0 - side)

    x, y = start(left, right), start(top, bottom)
    width, height = image.size
    return image.crop(
        (
            int(x * width),
            int(y * height),
            max(int(x * width) + 1, int((x + side) * width)),
            max(int(y * height) + 1, int((y + side) * height)),
        )
    )


def _joined(region: Region, overview_C: Tensor) -> Region:
    """Each concept's probability is the higher of the two views'."""
    evidence_C = overview_C.clone()
    for concept, prob in region.concepts:
        evidence_C[concept] = max(prob, float(overview_C[concept]))
    best = evidence_C.topk(len(region.concepts))
    concepts = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return dataclasses.replace(region, concepts=concepts)
