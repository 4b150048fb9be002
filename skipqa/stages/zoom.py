"""zoom: where a question is about one kind of thing, salient regions are seen for themselves.

A dog in a corner of the picture is a few dozen pixels wide: enough to see that it is one, not to
tell its breed. The most salient regions, if they are small, are therefore cut out and seen at the
size that the vision tower was trained on; what that shows joins the evidence of their tokens. It
costs a glance a region, so it has to be worth it: the question must tell enough of what to expect,
which is little where it is about a whole scene, and the picture must leave open what that is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from skipqa.backbones.backbone import Backbone
from skipqa.config import ZoomConfig
from skipqa.trace import StageRecord
from skipqa.types import Box, Budget, KeptTokens, Question, Region

SMALLEST = 1e-9


def zoom(
    image: Image.Image,
    kept: KeptTokens,
    regions: Sequence[Region],
    question: Question,
    allowed: Budget,
    backbone: Backbone,
    config: ZoomConfig,
    record: StageRecord,
) -> tuple[KeptTokens, tuple[Region, ...]]:
    record.kept, record.dropped = 0, len(regions)
    record.why, record.result = "nothing particular is asked about", tuple(regions)
    expected = question.concept_prior
    if expected is None or expected.information < config.min_information or allowed.passages == 0:
        return kept, tuple(regions)
    likely_C = kept.tokens.overview * expected.weights  # Bayes' rule, of the picture as a whole
    if (surest := float(likely_C.max() / likely_C.sum().clamp(min=SMALLEST))) >= config.sure:
        record.why = f"the picture is sure enough of what it shows ({surest:.2f})"
        return kept, tuple(regions)
    near = [r for r in range(min(config.regions, len(regions))) if _is_small(regions[r], config)]
    if not near:
        record.why = "no salient region is small"
        return kept, tuple(regions)
    embeddings, zoomed = backbone.concepts.embeddings, list(regions)
    evidence_VC, meaning_VD = kept.tokens.evidence.clone(), kept.tokens.meaning.clone()
    for r in near:
        seen, flops = backbone.encode_low_res(cut(image, regions[r].box, config))
        record.flops += flops
        zoomed[r] = _joined(regions[r], seen.overview)
        members = list(regions[r].members)
        joined = evidence_VC[members].maximum(seen.overview)
        evidence_VC[members] = joined / joined.sum(1, keepdim=True)
        meaning_VD[members] = F.normalize(evidence_VC[members] @ embeddings, dim=-1)
        record.flops += 2 * joined.numel() * embeddings.shape[1]
    tokens = dataclasses.replace(kept.tokens, evidence=evidence_VC, meaning=meaning_VD)
    record.kept, record.dropped = len(near), len(regions) - len(near)
    record.why = f"the question is worth {expected.information:.1f} nats of expectation"
    record.result = tuple(zoomed)
    return dataclasses.replace(kept, tokens=tokens), tuple(zoomed)


def _is_small(region: Region, config: ZoomConfig) -> bool:
    left, top, right, bottom = region.box
    return max(right - left, bottom - top) < config.largest


def cut(image: Image.Image, box: Box, config: ZoomConfig) -> Image.Image:
    """A square of the picture's proportions around the box, moved where it would reach outside."""
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
    """A concept counts as far as the surer of both looks has it."""
    evidence_C = overview_C.clone()
    for concept, prob in region.concepts:
        evidence_C[concept] = max(prob, float(overview_C[concept]))
    best = evidence_C.topk(len(region.concepts))
    concepts = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return dataclasses.replace(region, concepts=concepts)
