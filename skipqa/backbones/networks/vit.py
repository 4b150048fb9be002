"""The vision encoder of the larger presets: a plain ViT in torch.

Enters: pixels [B, 3, S, S]. Leaves: one state per patch [B, V, D], row-major from the top left;
the class token takes part and is dropped at the end. One class serves EVA-CLIP-G/14 and CLIP
ViT-L/14. Tokens may be merged between its layers (`token_merging.py`).

Shapes: B batch, S pixels per side, V patches, T = V + 1 tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.backbones.networks import token_merging
from skipqa.backbones.networks.token_merging import MergedTokens


@dataclass(frozen=True, slots=True)
class VitConfig:
    image: int  # pixels per side
    patch: int
    width: int
    layers: int
    heads: int
    ffn: int
    norm_first: bool = False  # CLIP normalises the embedded patches, EVA does not
    quick_gelu: bool = False  # CLIP's x * sigmoid(1.702 x)
    norm_eps: float = 1e-5

    @property
    def tokens(self) -> int:
        return (self.image // self.patch) ** 2


EVA_CLIP_G_336 = VitConfig(336, 14, 1_408, 40, 16, 6_144, norm_eps=1e-6)
CLIP_L_224 = VitConfig(224, 14, 1_024, 24, 16, 4_096, norm_first=True, quick_gelu=True)
CLIP_L_336 = VitConfig(336, 14, 1_024, 24, 16, 4_096, norm_first=True, quick_gelu=True)


class LayerShape(Protocol):
    """The part of a config that a layer needs: CLIP's text encoder is built of the same layers."""

    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def quick_gelu(self) -> bool: ...
    @property
    def norm_eps(self) -> float: ...


class Layer(nn.Module):
    def __init__(self, config: LayerShape) -> None:
        super().__init__()
        self.config = config
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.ffn_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.up = nn.Linear(config.width, config.ffn)
        self.down = nn.Linear(config.ffn, config.width)

    def forward(self, x_BTD: Tensor, *, causal: bool = False, alone: bool = False) -> Tensor:
        """With `alone` every token attends only to itself."""
        q, k, v = self._project(x_BTD)
        mixed = v if alone else F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self._transform(self._added(x_BTD, mixed))

    def merged(self, tokens: MergedTokens, count: int = 0) -> MergedTokens:
        """The layer on tokens of which some stand for several patches, and `count` more are merged
        before the feed-forward network. Attention is proportional: a token of n patches is attended
        to as if n tokens were there."""
        q, k, v = self._project(tokens.x_BTD)
        mask_B11T = tokens.sizes_BT.log()[:, None, None].to(q)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_B11T)
        tokens = replace(tokens, x_BTD=self._added(tokens.x_BTD, mixed))
        if count:
            tokens = token_merging.merge(tokens, k.mean(1), count)
        return replace(tokens, x_BTD=self._transform(tokens.x_BTD))

    def _project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [B, heads, T, D / heads]."""
        B, T, D = x_BTD.shape
        heads = self.config.heads
        qkv = self.qkv(self.attention_norm(x_BTD)).view(B, T, 3, heads, D // heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return q, k, v

    def _added(self, x_BTD: Tensor, mixed: Tensor) -> Tensor:
        return x_BTD + self.out(mixed.transpose(1, 2).reshape(x_BTD.shape))

    def _transform(self, x_BTD: Tensor) -> Tensor:
        hidden = self.up(self.ffn_norm(x_BTD))
        quick = self.config.quick_gelu
        hidden = hidden * torch.sigmoid(1.702 * hidden) if quick else F.gelu(hidden)
        return x_BTD + self.down(hidden)


class Vit(nn.Module):
    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        self.patches = nn.Conv2d(3, c.width, c.patch, c.patch, bias=not c.norm_first)
        self.class_token = nn.Parameter(torch.randn(c.width) * 0.02)
        self.places = nn.Parameter(torch.randn(c.tokens + 1, c.width) * 0.02)
        self.first_norm = nn.LayerNorm(c.width, eps=c.norm_eps) if c.norm_first else nn.Identity()
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))

    def forward(self, pixels_B3SS: Tensor) -> Tensor:
        x_BTD = self.embed(pixels_B3SS)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return x_BTD[:, 1:]

    def embed(self, pixels_B3SS: Tensor) -> Tensor:
        """The input [B, T, D] of the first layer, the class token first."""
        patches_BVD = self.patches(pixels_B3SS).flatten(2).transpose(1, 2)
        summary = self.class_token.expand(len(patches_BVD), 1, -1)
        grid = pixels_B3SS.shape[-1] // self.config.patch
        return self.first_norm(torch.cat((summary, patches_BVD), dim=1) + self._places(grid))

    def _places(self, grid: int) -> Tensor:
        """Position embeddings, interpolated where the image is not of the trained size."""
        native = self.config.image // self.config.patch
        if grid == native:
            return self.places
        map_1Dhw = self.places[1:].T.reshape(1, -1, native, native)
        map_1Dhw = F.interpolate(map_1Dhw.float(), (grid, grid), mode="bicubic")
        return torch.cat((self.places[:1], map_1Dhw[0].flatten(1).T.to(self.places)))


def flops(config: VitConfig) -> int:
    """FLOPs of one image, a multiply and an add counted as two."""
    tokens = config.tokens + 1
    return embedding_flops(config) + config.layers * layer_flops(config, tokens, tokens)


def embedding_flops(config: VitConfig) -> int:
    return 2 * config.tokens * 3 * config.patch**2 * config.width


def layer_flops(config: VitConfig, tokens: int, left: int) -> int:
    """Of a layer that attends to `tokens` and transforms what is `left` of them after merging."""
    attended = tokens * (4 * config.width + 2 * tokens)
    transformed = left * 2 * config.ffn
    return 2 * config.width * (attended + transformed)


def merged_layer_flops(config: VitConfig, tokens: int, per_layer: int) -> tuple[int, int]:
    """Of a layer that also merges, and how many tokens it leaves."""
    left = tokens - token_merging.most_merged(tokens, per_layer)
    matching = token_merging.matching_flops(tokens, config.width // config.heads)
    return layer_flops(config, tokens, left) + matching, left
