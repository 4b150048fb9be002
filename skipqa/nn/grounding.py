"""QVS with eyes: how much each visual token shows of what the question asks about.

Enters: visual tokens as the vision encoder gives them (features, evidence over the concepts, place
on the grid), the states of the question's tokens, and the logits of the training-free rule.
Leaves: one logit per visual token. It knows neither V' nor pixels.

The heads of `saliency.py` see one token and the pooled question at a time, so they cannot tell the
left dog from the right one. Here tokens and question states attend to each other first, in one
sequence; then the paper's score, variant A or B, reads the tokens. What it learns is added to the
rule's logits and starts at 0: an untrained grounding ranks tokens as the rule does.

Shapes: B images, V visual tokens, T question tokens, F features, C concepts, d text width, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.nn.saliency import (
    AlignedSaliency,
    ProductSaliency,
    Saliency,
    SaliencyConfig,
    build_saliency,
)
from skipqa.nn.saliency import flops as score_flops

FREQUENCIES = 4  # of the sines that tell a token's place
PLACE = 4 * FREQUENCIES + 1  # numbers per place
WIDENING = 4  # of the MLP in a block


@dataclass(frozen=True, slots=True)
class GroundingConfig:
    vision_width: int
    concepts: int
    text_width: int
    width: int = 128
    heads: int = 4
    layers: int = 2
    variant: Literal["A", "B"] = "A"  # of the score
    hidden: int = 64  # of the score
    dropout: float = 0.1


@dataclass(frozen=True, slots=True)
class Scene:
    """The visual tokens of B images on grids of one size."""

    features_BVF: Tensor
    evidence_BVC: Tensor  # probabilities
    rule_BV: Tensor  # logits of the training-free rule

    @property
    def grid(self) -> int:
        return int(self.features_BVF.shape[1] ** 0.5)


class Block(nn.Module):
    """Attention of every token to every other, then an MLP, each added to what it reads."""

    def __init__(self, config: GroundingConfig) -> None:
        super().__init__()
        D = config.width
        self.heads, self.dropout = config.heads, config.dropout
        self.before_attention, self.before_mlp = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, WIDENING * D), nn.Linear(WIDENING * D, D)

    def forward(self, x_BSD: Tensor, there_BS: Tensor) -> Tensor:
        x_BSD = x_BSD + self._drop(self.out(self._attend(self.before_attention(x_BSD), there_BS)))
        return x_BSD + self._drop(self.down(F.gelu(self.up(self.before_mlp(x_BSD)))))

    def _attend(self, x_BSD: Tensor, there_BS: Tensor) -> Tensor:
        q, k, v = self.qkv(x_BSD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed_BHSE = F.scaled_dot_product_attention(q, k, v, attn_mask=there_BS[:, None, None])
        return mixed_BHSE.transpose(1, 2).flatten(2)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Grounding(nn.Module):
    def __init__(self, config: GroundingConfig) -> None:
        super().__init__()
        self.config = config
        D = config.width
        self.standardise = nn.LayerNorm(config.vision_width, elementwise_affine=False)
        self.of_features = nn.Linear(config.vision_width, D)
        self.of_evidence = nn.Linear(config.concepts, D, bias=False)
        self.of_place = nn.Linear(PLACE, D, bias=False)
        self.of_question = nn.Linear(config.text_width, D)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.normalise = nn.LayerNorm(D)
        self.score = build_saliency(SaliencyConfig(D, config.variant, config.hidden))
        self.trust = nn.Parameter(torch.ones(()))  # in the rule
        _start_at_zero(self.score)

    def forward(self, scene: Scene, states_BTd: Tensor, there_BT: Tensor) -> Tensor:
        """[B, V]. `there_BT` is false where a shorter question is padded."""
        num_visual = scene.features_BVF.shape[1]
        x_BSD = torch.cat((self.tokens(scene), self.of_question(states_BTd)), dim=1)
        there_BS = F.pad(there_BT, (num_visual, 0), value=True)
        for block in self.blocks:
            x_BSD = block(x_BSD, there_BS)
        tokens_BVD, question_BTD = self.normalise(x_BSD).split(
            (num_visual, states_BTd.shape[1]), dim=1
        )
        weight_BT1 = there_BT[..., None].to(question_BTD)
        pooled_BD = (question_BTD * weight_BT1).sum(1) / weight_BT1.sum(1).clamp(min=1)
        return self.score(tokens_BVD, pooled_BD) + self.trust * scene.rule_BV

    def tokens(self, scene: Scene) -> Tensor:
        """[B, V, D]: W [features ; evidence], and the place."""
        # Square roots of probabilities have unit length, however many concepts share them.
        seen_BVD = self.of_features(self.standardise(scene.features_BVF))
        named_BVD = self.of_evidence(scene.evidence_BVC.sqrt())
        return seen_BVD + named_BVD + self.of_place(places(scene.grid).to(seen_BVD))


def places(grid: int) -> Tensor:
    """[V, PLACE]: sines and cosines of a cell's centre across and down, and its size. Fractions of
    the image, so that one network serves every grid."""
    middle_G = (torch.arange(grid) + 0.5) / grid
    angles_GN = torch.pi * middle_G[:, None] * 2.0 ** torch.arange(FREQUENCIES)
    waves_GN = torch.cat((angles_GN.sin(), angles_GN.cos()), dim=1)
    across = waves_GN.repeat(grid, 1)
    down = waves_GN.repeat_interleave(grid, dim=0)
    return torch.cat((across, down, torch.full((grid * grid, 1), 1 / grid)), dim=1)


def flops(config: GroundingConfig, num_visual: int, num_words: int) -> int:
    """FLOPs of scoring one image, a multiply and an add counted as two."""
    D, S = config.width, num_visual + num_words
    inputs = num_visual * (config.vision_width + config.concepts + PLACE)
    inputs += num_words * config.text_width
    block = S * (4 + 2 * WIDENING) * D * D + 2 * S * S * D
    score = SaliencyConfig(D, config.variant, config.hidden)
    return 2 * (inputs * D + config.layers * block) + score_flops(score, num_visual)


def _start_at_zero(score: Saliency) -> None:
    """The last product is 0 and has a gradient; the layers before it get one from the second step
    on."""
    if isinstance(score, ProductSaliency):
        nn.init.zeros_(score.out.weight)
        nn.init.zeros_(score.out.bias)
    elif isinstance(score, AlignedSaliency):
        nn.init.zeros_(score.of_token.weight)
