"""The fusion layer as a part to count: BSCA along edges, or dense cross-attention over all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from skipqa.costs.flops import Part
from skipqa.ops.bipartite_attention import bipartite_attention, compatibility, select_edges

NAME = "BSCA fusion"


@dataclass(frozen=True, slots=True)
class FusionShape:
    visual_width: int
    passage_width: int
    heads: int
    head_width: int
    edge_width: int = 128
    beta: float | None = 0.10  # variant A: the share of pairs that stay edges
    degree: float | None = None  # variant B: mean edges a token

    def edges(self, V: int, K: int) -> int:
        wanted = self.degree * V if self.degree is not None else (self.beta or 0.0) * V * K
        return min(V * K, math.ceil(wanted - 1e-6))


def fusion(shape: FusionShape, V: int, K: int, L_c: int, *, sparse: bool) -> Part:
    inner = shape.heads * shape.head_width
    project = 2 * V * shape.visual_width * inner + 2 * K * L_c * shape.passage_width * inner
    choose = V * shape.visual_width + K * shape.passage_width + V * K
    pairs = shape.edges(V, K) if sparse else V * K
    flops = 2 * (project + choose * shape.edge_width * sparse + 2 * pairs * L_c * inner)

    def prepare() -> Callable[[], object]:
        visual, passages = (
            torch.empty(V, shape.visual_width),
            torch.empty(K * L_c, shape.passage_width),
        )
        to_q, to_out = nn.Linear(shape.visual_width, inner), nn.Linear(inner, shape.visual_width)
        to_k, to_v = (nn.Linear(shape.passage_width, inner) for _ in range(2))
        h_v, h_k = (
            nn.Linear(shape.visual_width, shape.edge_width),
            nn.Linear(shape.passage_width, shape.edge_width),
        )
        pooled = torch.empty(K, shape.passage_width)

        def run() -> None:
            q = to_q(visual).view(V, shape.heads, -1)
            k, v = (f(passages).view(K * L_c, shape.heads, -1) for f in (to_k, to_v))
            if sparse:
                compatibility(h_v(visual), h_k(pooled))
                _attend_along_edges(shape, V, K, L_c)
            else:
                F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)))
            to_out(q.flatten(1))

        return run

    return Part(NAME, flops, prepare)


def _attend_along_edges(shape: FusionShape, V: int, K: int, L_c: int) -> None:
    """Which edges survive depends on values, which meta tensors lack: a real run, on a CPU."""
    q = torch.zeros(V, shape.heads, shape.head_width)
    keys = torch.zeros(K * L_c, shape.heads, shape.head_width)
    rule = {"degree": shape.degree} if shape.degree is not None else {"top": shape.beta}
    edges = select_edges(torch.rand(V, K, generator=torch.Generator().manual_seed(0)), **rule)
    bipartite_attention(q, keys, keys, edges, [L_c] * K, backend="gather")
