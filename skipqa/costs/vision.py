"""The vision encoders as parts to count: a ViT, and the pocket preset's network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from skipqa.backbones import efficientnet_lite, vit
from skipqa.costs.flops import Part

NAME = "vision encoder"


def transformer(config: vit.VitConfig) -> Part:
    def prepare() -> Callable[[], object]:
        model, pixels = vit.Vit(config), torch.empty(1, 3, config.image, config.image)
        return lambda: model(pixels)

    return Part(NAME, vit.flops(config), prepare, always=True)


def efficientnet(scales: Sequence[int]) -> Part:
    """EfficientNet-Lite2 over the image at several sizes, classified at every cell."""
    with torch.device("meta"):
        network = efficientnet_lite.EfficientNetLite()

    def prepare() -> Callable[[], object]:
        images = [torch.empty(1, 3, scale, scale) for scale in scales]

        def run() -> None:
            for image in images:
                network.classifier(network(image).flatten(2).transpose(1, 2))

        return run

    flops = sum(efficientnet_lite.flops(network, scale) for scale in scales)
    return Part(NAME, flops, prepare, always=True)
