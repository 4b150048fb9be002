"""MobileSAM in plain torch: masks of whatever lies at given points.

Enters: normalised pixels [1, 3, S, S], then points in the same square. Leaves: an image's
features, then for each point three masks, from a part to the whole, each with its predicted
quality. The image is encoded once for any number of points. It knows nothing of aspect ratios or
boxes.

Shapes: N points, T = 7 tokens per point (quality, four masks, the point, an end), C width,
P = s * s cells of the features, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.backbones.networks import tiny_vit
from skipqa.backbones.networks.tiny_vit import ChannelNorm, TinyVit, TinyVitConfig

MASKS = 3  # the network's fourth mask is for unambiguous prompts


@dataclass(frozen=True, slots=True)
class MobileSamConfig:
    encoder: TinyVitConfig = tiny_vit.MOBILE_SAM
    layers: int = 2
    heads: int = 8
    ffn: int = 2_048

    @property
    def width(self) -> int:
        return self.encoder.features

    @property
    def cells(self) -> int:
        """P."""
        return (self.encoder.image // 16) ** 2


class Masks(NamedTuple):
    logits: Tensor  # [N, 3, S / 4, S / 4], positive inside
    quality: Tensor  # [N, 3], the intersection over union that the network expects


class Attention(nn.Module):
    """Attention from one set of tokens to another, `inner` wide inside."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, inner) for _ in range(3))
        self.out = nn.Linear(inner, width)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """What is the same for all points comes as a batch of one and is projected once."""
        batch = max(len(queries), len(keys))

        def split(x: Tensor) -> Tensor:
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2).expand(batch, -1, -1, -1)

        q, k, v = split(self.q(queries)), split(self.k(keys)), split(self.v(values))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A point's tokens attend to each other and to the image, then the image attends to them."""

    def __init__(self, config: MobileSamConfig) -> None:
        super().__init__()
        width, heads = config.width, config.heads
        self.among_tokens = Attention(width, heads, width)
        self.among_tokens_norm = nn.LayerNorm(width)
        self.to_image = Attention(width, heads, width // 2)
        self.to_image_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, config.ffn)
        self.down = nn.Linear(config.ffn, width)
        self.ffn_norm = nn.LayerNorm(width)
        self.to_tokens = Attention(width, heads, width // 2)
        self.to_tokens_norm = nn.LayerNorm(width)

    def forward(
        self, x_NTC: Tensor, image_NPC: Tensor, prompt_NTC: Tensor, places_1PC: Tensor, first: bool
    ) -> tuple[Tensor, Tensor]:
        if first:  # the tokens are still the prompt: it is not added again, nor is the residual
            x_NTC = self.among_tokens(x_NTC, x_NTC, x_NTC)
        else:
            placed = x_NTC + prompt_NTC
            x_NTC = x_NTC + self.among_tokens(placed, placed, x_NTC)
        x_NTC = self.among_tokens_norm(x_NTC)
        placed_image = image_NPC + places_1PC
        x_NTC = x_NTC + self.to_image(x_NTC + prompt_NTC, placed_image, image_NPC)
        x_NTC = self.to_image_norm(x_NTC)
        x_NTC = self.ffn_norm(x_NTC + self.down(self.up(x_NTC).relu()))
        image_NPC = image_NPC + self.to_tokens(placed_image, x_NTC + prompt_NTC, x_NTC)
        return x_NTC, self.to_tokens_norm(image_NPC)


class MobileSam(nn.Module):
    def __init__(self, config: MobileSamConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or MobileSamConfig()
        width = config.width
        self.encoder = TinyVit(config.encoder)
        self.frequencies = nn.Parameter(torch.randn(2, width // 2))
        self.outputs = nn.Parameter(torch.randn(2 + MASKS, width))  # quality, then four masks
        self.point = nn.Parameter(torch.randn(width))
        self.end = nn.Parameter(torch.randn(width))
        self.no_mask = nn.Parameter(torch.randn(width))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.to_image = Attention(width, config.heads, width // 2)
        self.norm = nn.LayerNorm(width)
        self.upscale = nn.Sequential(
            nn.ConvTranspose2d(width, width // 4, 2, 2),
            ChannelNorm(width // 4),
            nn.GELU(),
            nn.ConvTranspose2d(width // 4, width // 8, 2, 2),
            nn.GELU(),
        )
        self.to_mask = nn.ModuleList(_three_layers(width, width // 8) for _ in range(MASKS))
        self.to_quality = _three_layers(width, 1 + MASKS)

    def encode(self, pixels_13SS: Tensor) -> Tensor:
        """The image's features [1, C, s, s]."""
        return self.encoder(pixels_13SS)

    def forward(self, features_1Css: Tensor, points_N2: Tensor) -> Masks:
        """The masks at `points_N2`: across and down, as fractions of the square."""
        side, count = features_1Css.shape[-1], len(points_N2)
        prompt_NTC = torch.cat(
            (
                self.outputs.expand(count, -1, -1),
                (self._places(points_N2) + self.point)[:, None],
                self.end.expand(count, 1, -1),
            ),
            dim=1,
        )
        middles = (torch.arange(side, device=points_N2.device) + 0.5) / side
        grid_PP2 = torch.stack(torch.meshgrid(middles, middles, indexing="xy"), dim=-1)
        places_1PC = self._places(grid_PP2.flatten(0, 1))[None]
        image = features_1Css.flatten(2).transpose(1, 2) + self.no_mask

        x_NTC = prompt_NTC
        for number, layer in enumerate(self.layers):
            x_NTC, image = layer(x_NTC, image, prompt_NTC, places_1PC, number == 0)
        x_NTC = x_NTC + self.to_image(x_NTC + prompt_NTC, image + places_1PC, image)
        x_NTC = self.norm(x_NTC)

        fine = self.upscale(image.transpose(1, 2).unflatten(2, (side, side)))
        first = len(self.outputs) - MASKS
        kernels = [mlp(x_NTC[:, first + number]) for number, mlp in enumerate(self.to_mask)]
        logits = torch.einsum("nmc,nchw->nmhw", torch.stack(kernels, dim=1), fine)
        return Masks(logits, self.to_quality(x_NTC[:, 0])[:, -MASKS:])

    def _places(self, points: Tensor) -> Tensor:
        """Random Fourier features of points in the unit square, [..., 2] to [..., C]."""
        angles = 2 * math.pi * ((2 * points - 1) @ self.frequencies)
        return torch.cat((angles.sin(), angles.cos()), dim=-1)


def _three_layers(width: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, outside),
    )


def from_published_names(
    state: Mapping[str, Tensor], config: MobileSamConfig | None = None
) -> dict[str, Tensor]:
    """The published checkpoint renamed, without the weights for other kinds of prompts."""
    config = config or MobileSamConfig()
    prefix = "image_encoder."
    encoder = {name.removeprefix(prefix): value for name, value in state.items() if prefix in name}
    renamed = {
        f"encoder.{name}": value
        for name, value in tiny_vit.from_published_names(encoder, config.encoder).items()
    }

    def take(name: str, old: str) -> None:
        for kind in ("weight", "bias"):
            renamed[f"{name}.{kind}"] = state[f"mask_decoder.{old}.{kind}"]

    def take_attention(name: str, old: str) -> None:
        for part in ("q", "k", "v", "out"):
            take(f"{name}.{part}", f"transformer.{old}.{part}_proj")

    prompt = "prompt_encoder"
    renamed["frequencies"] = state[f"{prompt}.pe_layer.positional_encoding_gaussian_matrix"]
    renamed["point"] = state[f"{prompt}.point_embeddings.1.weight"][0]
    renamed["end"] = state[f"{prompt}.not_a_point_embed.weight"][0]
    renamed["no_mask"] = state[f"{prompt}.no_mask_embed.weight"][0]
    tokens = (state[f"mask_decoder.{name}.weight"] for name in ("iou_token", "mask_tokens"))
    renamed["outputs"] = torch.cat(tuple(tokens))
    for i in range(config.layers):
        name = f"layers.{i}"
        take_attention(f"{name}.among_tokens", f"{name}.self_attn")
        take_attention(f"{name}.to_image", f"{name}.cross_attn_token_to_image")
        take_attention(f"{name}.to_tokens", f"{name}.cross_attn_image_to_token")
        for new, old in _LAYER.items():
            take(f"{name}.{new}", f"transformer.{name}.{old}")
    take_attention("to_image", "final_attn_token_to_image")
    take("norm", "transformer.norm_final_attn")
    for i in (0, 1, 3):
        take(f"upscale.{i}", f"output_upscaling.{i}")
    for layer in range(3):
        take(f"to_quality.{2 * layer}", f"iou_prediction_head.layers.{layer}")
        for mask in range(MASKS):
            old = f"output_hypernetworks_mlps.{mask + 1}.layers.{layer}"
            take(f"to_mask.{mask}.{2 * layer}", old)
    return {name: value.contiguous() for name, value in renamed.items()}


_LAYER = {
    "among_tokens_norm": "norm1",
    "to_image_norm": "norm2",
    "up": "mlp.lin1",
    "down": "mlp.lin2",
    "ffn_norm": "norm3",
    "to_tokens_norm": "norm4",
}


def flops(config: MobileSamConfig, points: int) -> int:
    """FLOPs of one image and `points` points, a multiply and an add counted as two."""
    C, P, T = config.width, config.cells, 4 + MASKS
    inner = C // 2
    across = 2 * (T + P) * C * inner + 2 * T * P * inner  # tokens to image, or back
    layer = 4 * T * C * C + 2 * T * T * C + 2 * T * C * config.ffn + 2 * across
    upscale = P * (C * C + C * C // 2)
    heads = MASKS * (2 * C * C + C * C // 8 + 2 * P * C) + 2 * C * C + C * (1 + MASKS)
    per_point = config.layers * layer + across + upscale + heads + C
    # In the first layer the image is still the same for all points, and so are its keys, values
    # and queries.
    shared = (points - 1) * 3 * P * C * inner
    macs = P * C + points * per_point - shared
    return tiny_vit.flops(config.encoder) + 2 * macs
