"""The text encoder: a BERT-family encoder in plain torch (MiniLM in the pocket preset).

Enters: token ids with a padding mask. Leaves: the state of every token and their unit-length
mean. It knows nothing of questions, passages or retrieval.

Shapes: B batch, L tokens, D width, H heads, E head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class BertConfig:
    vocabulary: int = 30_522
    width: int = 384
    layers: int = 6
    heads: int = 12
    ffn: int = 1_536
    positions: int = 512
    norm_eps: float = 1e-12


MINILM_L6 = BertConfig()


class Layer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.up = nn.Linear(config.width, config.ffn)
        self.down = nn.Linear(config.ffn, config.width)
        self.ffn_norm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, x_BLD: Tensor, mask_B11L: Tensor | None) -> Tensor:
        B, L, D = x_BLD.shape
        q, k, v = self.qkv(x_BLD).view(B, L, 3, self.heads, D // self.heads).unbind(2)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask_B11L
        )
        x_BLD = self.attention_norm(x_BLD + self.out(mixed.transpose(1, 2).reshape(B, L, D)))
        return self.ffn_norm(x_BLD + self.down(F.gelu(self.up(x_BLD))))


class Bert(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.places = nn.Embedding(config.positions, config.width)
        self.segment = nn.Parameter(torch.zeros(config.width))  # one segment only
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))

    def forward(self, ids_BL: Tensor, mask_BL: Tensor | None = None) -> Tensor:
        """States [B, L, D]; `mask_BL` is true at real tokens, None where all are."""
        x = self.words(ids_BL) + self.places.weight[: ids_BL.shape[1]] + self.segment
        x = self.norm(x)
        mask = None if mask_BL is None else mask_BL[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return x


def mean_pool(states_BLD: Tensor, mask_BL: Tensor | None = None) -> Tensor:
    """The unit-length mean over real tokens, [B, D]."""
    if mask_BL is None:
        return F.normalize(states_BLD.mean(1), dim=-1)
    weights = mask_BL[..., None].to(states_BLD.dtype)
    return F.normalize((states_BLD * weights).sum(1), dim=-1)


def from_hub_names(state: Mapping[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    """Weights under the names that the Hub's BERT checkpoints use, renamed and joined."""
    state = {name.removeprefix("bert."): value for name, value in state.items()}
    renamed = {
        "words.weight": state["embeddings.word_embeddings.weight"],
        "places.weight": state["embeddings.position_embeddings.weight"],
        "segment": state["embeddings.token_type_embeddings.weight"][0],
    }

    def take(ours: str, *theirs: str) -> None:
        for part in ("weight", "bias"):
            renamed[f"{ours}.{part}"] = torch.cat([state[f"{name}.{part}"] for name in theirs])

    take("norm", "embeddings.LayerNorm")
    for i in range(config.layers):
        layer = f"encoder.layer.{i}."
        attention = f"{layer}attention."
        take(f"layers.{i}.qkv", *(f"{attention}self.{x}" for x in ("query", "key", "value")))
        take(f"layers.{i}.out", f"{attention}output.dense")
        take(f"layers.{i}.attention_norm", f"{attention}output.LayerNorm")
        take(f"layers.{i}.up", f"{layer}intermediate.dense")
        take(f"layers.{i}.down", f"{layer}output.dense")
        take(f"layers.{i}.ffn_norm", f"{layer}output.LayerNorm")
    return renamed


def flops(config: BertConfig, length: int) -> int:
    """FLOPs of one text of `length` tokens, a multiply and an add counted as two."""
    linear = config.width * (4 * config.width + 2 * config.ffn)
    return 2 * config.layers * length * (linear + 2 * config.width * length)
