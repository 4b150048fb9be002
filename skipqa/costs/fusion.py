"""The fusion layer as a part to count: BSCA along edges, or dense cross-attention.

Enters: the layer's config and sizes. Leaves: a `Part`. No weights are read.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipqa.costs.flops import Part
from skipqa.nn.fusion import BipartiteFusion, FusionConfig, flops
from skipqa.ops.bipartite_attention import select_edges

NAME = "BSCA fusion"


def fusion(config: FusionConfig, V: int, K: int, L_c: int, *, sparse: bool) -> Part:
    """Needs a fixed number of edges; what a learned threshold keeps cannot be counted ahead."""
    assert config.rule.top is not None or config.rule.degree is not None
    return _sparse(config, V, K, L_c) if sparse else _dense(config, V, K, L_c)


def dense_flops(config: FusionConfig, V: int, K: int, L_c: int) -> int:
    inner = config.inner
    project = 2 * V * config.width * inner + 2 * K * L_c * config.passage_width * inner
    return 2 * (project + 2 * V * K * L_c * inner)


def _sparse(config: FusionConfig, V: int, K: int, L_c: int) -> Part:
    def prepare() -> Callable[[], object]:
        # Which edges survive depends on values, which meta tensors lack: this part runs on a CPU.
        layer = BipartiteFusion(config).to_empty(device="cpu").eval()
        layer.requires_grad_(False)
        for parameter in layer.parameters():
            parameter.zero_()
        tokens = torch.zeros(V, config.width, device="cpu")
        embeddings = torch.zeros(K, config.passage_width, device="cpu")
        passages = torch.zeros(K * L_c, config.passage_width, device="cpu")
        # Passage j is unit vector j, so that the layer's scores are `_even_scores`.
        layer.edge_token.weight.fill_diagonal_(1.0)
        layer.edge_passage.weight.fill_diagonal_(1.0)
        tokens[:, :K] = _even_scores(V, K)
        embeddings.fill_diagonal_(1.0)
        return lambda: layer(tokens, passages, embeddings, [L_c] * K)

    # Evenly spread edges reach the most tokens, which is the most work for their number.
    edges = select_edges(_even_scores(V, K), top=config.rule.top, degree=config.rule.degree)
    return Part(NAME, flops(config, edges, [L_c] * K), prepare)


def _dense(config: FusionConfig, V: int, K: int, L_c: int) -> Part:
    inner = config.inner

    def prepare() -> Callable[[], object]:
        tokens, passages = torch.empty(V, config.width), torch.empty(K * L_c, config.passage_width)
        query, out = nn.Linear(config.width, inner), nn.Linear(inner, config.width)
        key, value = (nn.Linear(config.passage_width, inner) for _ in range(2))

        def heads(x: Tensor) -> Tensor:
            return x.view(len(x), config.heads, -1).transpose(0, 1)[None]

        def run() -> None:
            q, k, v = heads(query(tokens)), heads(key(passages)), heads(value(passages))
            out(F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).reshape(V, inner))

        return run

    return Part(NAME, dense_flops(config, V, K, L_c), prepare)


def _even_scores(V: int, K: int) -> Tensor:
    """[V, K]: each token's first choice outranks all second choices, and so on."""
    choice = (torch.arange(K, device="cpu")[None] - torch.arange(V, device="cpu")[:, None]) % K
    return 1.0 - choice / K
