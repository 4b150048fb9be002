"""The vision encoders as parts to count: a ViT of any shape, and the pocket preset's network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from skipqa.backbones import efficientnet_lite
from skipqa.costs.flops import Part
from skipqa.nn.drafter import Layer

NAME = "vision encoder"


@dataclass(frozen=True, slots=True)
class VitShape:
    image: int  # pixels a side
    patch: int
    width: int
    layers: int
    heads: int
    ffn: int

    @property
    def tokens(self) -> int:
        return (self.image // self.patch) ** 2


EVA_CLIP_G_336 = VitShape(336, 14, 1_408, 40, 16, 6_144)
CLIP_L_224 = VitShape(224, 14, 1_024, 24, 16, 4_096)


def vit(shape: VitShape) -> Part:
    tokens = shape.tokens + 1  # the class token
    patches = shape.tokens * 3 * shape.patch**2 * shape.width
    per_token = shape.width * (4 * shape.width + 2 * shape.ffn + 2 * tokens)

    def prepare() -> Callable[[], object]:
        embed = nn.Conv2d(3, shape.width, shape.patch, shape.patch, bias=False)
        layers = [Layer(shape.width, shape.heads, shape.ffn) for _ in range(shape.layers)]
        pixels, x = torch.empty(1, 3, shape.image, shape.image), torch.empty(1, tokens, shape.width)

        def run() -> None:
            embed(pixels)
            for layer in layers:
                layer(x, None)

        return run

    return Part(NAME, 2 * (patches + shape.layers * tokens * per_token), prepare, always=True)


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
