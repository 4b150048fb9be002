"""The text encoder: a BERT-family encoder in plain torch (MiniLM in every preset).

Enters: token ids, padded with a mask or packed one text after another. Leaves: the state of every
token and the unit-length mean of a text. It knows nothing of questions, passages or retrieval.

Shapes: B batch, L tokens, N tokens of all texts together, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
        return self._finish(x_BLD, mixed.transpose(1, 2).reshape(B, L, D))

    def packed(self, x_ND: Tensor, lengths: Sequence[int]) -> Tensor:
        """As `forward` for texts one after another; attention stays within each text."""
        N, D = x_ND.shape
        q, k, v = self.qkv(x_ND).view(N, 3, self.heads, D // self.heads).permute(1, 2, 0, 3)
        mixed = [
            F.scaled_dot_product_attention(*(part[None] for part in text))[0]
            for text in zip(*(part.split(list(lengths), dim=1) for part in (q, k, v)), strict=True)
        ]
        return self._finish(x_ND, torch.cat(mixed, dim=1).transpose(0, 1).reshape(N, D))

    def _finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = self.attention_norm(x + self.out(mixed))
        return self.ffn_norm(x + self.down(F.gelu(self.up(x))))


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
        """States [B, L, D]; `mask_BL` is true at real tokens, None without padding."""
        x = self.words(ids_BL) + self.places.weight[: ids_BL.shape[1]] + self.segment
        x = self.norm(x)
        mask = None if mask_BL is None else mask_BL[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return x

    def first(self, layers: int) -> Bert:
        """This network without its later layers."""
        self.layers = self.layers[:layers]
        self.config = replace(self.config, layers=len(self.layers))
        return self

    def packed(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
        """States [L, D] of each text, on the CPU. All texts are packed into one sequence: nothing
        is padded, and the matrix products are large. One by one, short texts spend most of a CPU's
        time on loading the weights."""
        lengths = list(map(len, texts))
        device = self.segment.device
        ids_N = torch.tensor([token for text in texts for token in text], device=device)
        places_N = torch.cat([torch.arange(length, device=device) for length in lengths])
        x_ND = self.norm(self.words(ids_N) + self.places(places_N) + self.segment)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            x_ND = layer.packed(x_ND, lengths)
        return x_ND.cpu().split(lengths)


def mean_pool(states_BLD: Tensor, mask_BL: Tensor | None = None) -> Tensor:
    """The unit-length mean over real tokens, [B, D]."""
    if mask_BL is None:
        return F.normalize(states_BLD.mean(1), dim=-1)
    weights = mask_BL[..., None].to(states_BLD.dtype)
    return F.normalize((states_BLD * weights).sum(1), dim=-1)


def from_hub_names(state: Mapping[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    """The state of `Bert` from a Hugging Face BERT checkpoint: renamed, q|k|v joined."""
    state = {name.removeprefix("bert."): value for name, value in state.items()}
    renamed = {
        "words.weight": state["embeddings.word_embeddings.weight"],
        "places.weight": state["embeddings.position_embeddings.weight"],
        "segment": state["embeddings.token_type_embeddings.weight"][0],
    }

    def take(new: str, *old: str) -> None:
        for part in ("weight", "bias"):
            renamed[f"{new}.{part}"] = torch.cat([state[f"{name}.{part}"] for name in old])

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
