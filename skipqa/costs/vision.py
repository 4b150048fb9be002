"""The vision encoders as parts to count: a ViT, and the pocket preset's network.

Enters: network configs and image sizes. Leaves: a `Part`. No weights are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from skipqa.backbones.networks import efficientnet_lite, vit
from skipqa.costs.flops import Part
from skipqa.nn import tagger

NAME, HIGH_RES = "vision encoder", "high-resolution encoder"
CELL, NATIVE_CELLS = 32, 8  # pixels per side of a cell, cells per side of a tagged view


def transformer(config: vit.VitConfig) -> Part:
    def prepare() -> Callable[[], object]:
        model, pixels = vit.Vit(config), torch.empty(1, 3, config.image, config.image)
        return lambda: model(pixels)

    return Part(NAME, vit.flops(config), prepare, always=True)


def efficientnet(
    tags: tagger.TaggerConfig, concepts: int, scales: Sequence[int], *, high_res: bool
) -> Part:
    """EfficientNet-Lite2 at the first scale, or what `high_res` adds at the other scales.

    Every cell of every scale is classified, every view of them is tagged, and each token of the
    finest scale gets its meaning from the evidence for all concepts.
    """
    with torch.device("meta"):
        network = efficientnet_lite.EfficientNetLite()
    new, seen = (scales[1:], scales) if high_res else (scales[:1], scales[:1])
    sides = [scale // CELL for scale in seen]
    cells = sum(side * side for side in sides)
    views = sum((max(side - NATIVE_CELLS, 0) // 2 + 1) ** 2 for side in sides)
    tokens = sides[-1] ** 2

    def prepare() -> Callable[[], object]:
        images = [torch.empty(1, 3, scale, scale) for scale in new]
        judge, pooled = tagger.Tagger(tags).eval(), torch.empty(views, 2 * tags.width)
        features = torch.empty(cells, network.config.features)
        evidence, names = torch.empty(tokens, concepts), torch.empty(concepts, tags.text_width)

        def run() -> None:
            for image in images:
                network(image)
            network.classifier(features)
            judge.judge(pooled)
            evidence @ names

        return run

    classified = 2 * network.classifier.weight.numel()
    flops = sum(
        efficientnet_lite.flops(network, scale) - classified * (scale // CELL) ** 2 for scale in new
    )
    flops += classified * cells + tagger.flops(tags, views)
    flops += 2 * tokens * concepts * tags.text_width
    return Part(HIGH_RES if high_res else NAME, flops, prepare, always=not high_res)
