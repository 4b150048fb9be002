"""BSCA: the layer that lets kept visual tokens read the passages they fit (equation 8).

Enters: kept visual tokens, the tokens and one embedding of every passage, packed. Leaves: the
fused tokens and the edges that survived. Work is done for tokens and passages with an edge only:
a token without one leaves exactly as it came, a passage without one is never projected.
Knows nothing of where tokens and passages come from.

Shape letters: B items, V visual tokens, K passages an item, N tokens of all passages together
(passage after passage, item after item), d width of a visual token, p of a passage token,
H heads, D head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from skipqa.ops.bipartite_attention import bipartite_attention, compatibility, select_edges
from skipqa.ops.bipartite_attention.dispatch import Compatibility, triton_is_installed


@dataclass(frozen=True, slots=True)
class EdgeRule:
    """Which edges survive. Exactly one of `top`, `degree` and `threshold` is set."""

    kind: Compatibility = "sigmoid"
    top: float | None = None  # fraction of an item's pairs
    degree: float | None = None  # mean number of edges a token
    threshold: bool = False  # compatibility above the layer's learned threshold

    def expected_edges(self, num_tokens: int, num_passages: int) -> float:
        """An upper estimate for one item, known before any score is."""
        pairs = num_tokens * num_passages
        if self.degree is not None:
            return min(pairs, self.degree * num_tokens)
        return pairs * (1.0 if self.top is None else self.top)


@dataclass(frozen=True, slots=True)
class FusionConfig:
    """Variant A keeps the top `beta` of sigmoid compatibilities, or with beta = None those above
    a learned threshold; variant B as many cosines as give a mean of `degree` edges a token."""

    width: int
    passage_width: int
    heads: int
    variant: Literal["A", "B"] = "A"
    head_width: int | None = None
    edge_width: int = 128  # d_h
    beta: float | None = 0.10
    degree: float = 4.0

    @property
    def rule(self) -> EdgeRule:
        if self.variant == "B":
            return EdgeRule(kind="cosine", degree=self.degree)
        return EdgeRule(threshold=True) if self.beta is None else EdgeRule(top=self.beta)


class Fusion(NamedTuple):
    tokens: Tensor  # the shape of the visual tokens that entered
    edges: Tensor  # [V, K] or [B, V, K] bool
    scores: Tensor  # compatibilities, the shape of `edges`


class BipartiteFusion(nn.Module):
    config: FusionConfig  # of a layer that `build_fusion` made

    def __init__(
        self,
        width: int,
        passage_width: int,
        heads: int,
        *,
        rule: EdgeRule,
        head_width: int | None = None,
        edge_width: int = 128,
        threshold: float = 0.5,
    ) -> None:
        super().__init__()
        self.rule, self.heads = rule, heads
        self.head_width = head_width or width // heads
        inner = heads * self.head_width
        self.edge_token = nn.Linear(width, edge_width, bias=False)  # W_v of equation 8
        self.edge_passage = nn.Linear(passage_width, edge_width, bias=False)  # W_k
        self.threshold = nn.Parameter(torch.tensor(threshold))  # tau
        self.query = nn.Linear(width, inner, bias=False)
        self.key = nn.Linear(passage_width, inner, bias=False)
        self.value = nn.Linear(passage_width, inner, bias=False)
        # Starting at zero the layer starts as the identity; no bias, so that rows stay unchanged.
        self.out = nn.Linear(inner, width, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(
        self,
        tokens: Tensor,
        passage_tokens: Tensor,
        passage_embeddings: Tensor,
        lengths: Tensor | Sequence[int],
        *,
        longest: int | None = None,
        order: Literal["auto", "project", "absorb"] = "auto",
    ) -> Fusion:
        """`tokens [V, d]`, `passage_tokens [N, p]`, `passage_embeddings [K, p]`, `lengths [K]`.

        A batch: `[B, V, d]`, `[N, p]` packed over all items, `[B, K, p]`, `[B, K]`.
        `longest` bounds the passage lengths; without it a GPU must be asked, which forbids a
        CUDA graph. `order` picks how keys and values are had: "project" computes them,
        "absorb" moves their projections to the queries and the results (`ops/…/fused.py`) and is
        the cheaper one when few tokens read many; "auto" counts.
        """
        batched = tokens.dim() == 3
        tokens_BVd = tokens if batched else tokens[None]
        embeddings_BKp = passage_embeddings if batched else passage_embeddings[None]
        lengths_BK = torch.as_tensor(lengths, device=tokens.device).reshape(
            embeddings_BKp.shape[:2]
        )
        scores_BVK = compatibility(
            self.edge_token(tokens_BVd), self.edge_passage(embeddings_BKp), kind=self.rule.kind
        )
        edges_BVK = select_edges(
            scores_BVK,
            threshold=self.threshold if self.rule.threshold else None,
            top=self.rule.top,
            degree=self.rule.degree,
            lengths=lengths_BK,
        )
        fused_BVd = self._fuse(tokens_BVd, passage_tokens, edges_BVK, lengths_BK, longest, order)
        found = Fusion(fused_BVd, edges_BVK, scores_BVK)
        return found if batched else Fusion(*(x[0] for x in found))

    def _fuse(
        self,
        tokens_BVd: Tensor,
        passages_Np: Tensor,
        edges_BVK: Tensor,
        lengths_BK: Tensor,
        longest: int | None,
        order: Literal["auto", "project", "absorb"],
    ) -> Tensor:
        learns = torch.is_grad_enabled() and any(
            x.requires_grad for x in (tokens_BVd, passages_Np, *self.parameters())
        )
        if order == "auto":
            absorbs = not learns and self._absorbing_is_cheaper(edges_BVK, passages_Np)
            order = "absorb" if absorbs else "project"
        if order == "absorb" and tokens_BVd.is_cuda and triton_is_installed() and not learns:
            from skipqa.ops.bipartite_attention import fused

            return fused.fusion_layer(
                tokens_BVd,
                passages_Np,
                fused.Weights(*(x.weight for x in (self.query, self.key, self.value, self.out))),
                edges_BVK,
                lengths_BK,
                self.heads,
                1.0 / math.sqrt(self.head_width),
                int(lengths_BK.max()) if longest is None else longest,
            )
        attend = self._absorb if order == "absorb" else self._project
        if order == "project" and tokens_BVd.is_cuda:
            # To leave out rows one would have to wait for their number; the kernel skips anyway.
            return tokens_BVd + self.out(
                self._attend(
                    self._heads(self.query(tokens_BVd)),
                    passages_Np,
                    edges_BVK,
                    lengths_BK,
                ).flatten(2)
            )
        edges_BVK = edges_BVK & (lengths_BK > 0)[:, None, :]
        reads_BV = edges_BVK.any(-1)
        if not bool(reads_BV.any()):
            return tokens_BVd
        read_RHD = attend(tokens_BVd, passages_Np, edges_BVK, lengths_BK, reads_BV)
        fused_BVd = tokens_BVd.clone()
        fused_BVd[reads_BV] = tokens_BVd[reads_BV] + self.out(read_RHD.flatten(1))
        return fused_BVd

    def _project(
        self,
        tokens_BVd: Tensor,
        passages_Np: Tensor,
        edges_BVK: Tensor,
        lengths_BK: Tensor,
        reads_BV: Tensor,
    ) -> Tensor:
        """Keys and values of the passages that are read; attention rows [R, H, D]."""
        read_BK = edges_BVK.any(1)
        if not bool((read_BK | (lengths_BK == 0)).all()):
            passages_Np = passages_Np[
                torch.repeat_interleave(read_BK.flatten(), lengths_BK.flatten())
            ]
            lengths_BK = lengths_BK * read_BK
        q_RHD = self._heads(self.query(tokens_BVd[reads_BV]))
        q_BVHD = q_RHD.new_zeros(*reads_BV.shape, *q_RHD.shape[1:])
        q_BVHD[reads_BV] = q_RHD
        return self._attend(q_BVHD, passages_Np, edges_BVK, lengths_BK)[reads_BV]

    def _attend(
        self,
        q_BVHD: Tensor,
        passages_Np: Tensor,
        edges_BVK: Tensor,
        lengths_BK: Tensor,
    ) -> Tensor:
        return bipartite_attention(
            q_BVHD,
            self._heads(self.key(passages_Np)),
            self._heads(self.value(passages_Np)),
            edges_BVK,
            lengths_BK,
        )

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.head_width))

    def _absorb(
        self,
        tokens_BVd: Tensor,
        passages_Np: Tensor,
        edges_BVK: Tensor,
        lengths_BK: Tensor,
        reads_BV: Tensor,
    ) -> Tensor:
        """All heads attend to the passage tokens themselves: a head becomes one more token."""
        shape = (self.heads, self.head_width, passages_Np.shape[1])
        q_RHD = self._heads(self.query(tokens_BVd[reads_BV]))
        query_RHp = torch.einsum("rhd,hdp->rhp", q_RHD, self.key.weight.view(shape))
        query_BVHp = query_RHp.new_zeros(*reads_BV.shape, *query_RHp.shape[1:])
        query_BVHp[reads_BV] = query_RHp
        shared_N1p = passages_Np[:, None, :]
        context_BVHp = bipartite_attention(
            query_BVHp.flatten(1, 2)[:, :, None, :],
            shared_N1p,
            shared_N1p,
            edges_BVK.repeat_interleave(self.heads, dim=1),
            lengths_BK,
            scale=1.0 / math.sqrt(self.head_width),
            backend="gather",
        ).view(query_BVHp.shape)
        return torch.einsum("rhp,hdp->rhd", context_BVHp[reads_BV], self.value.weight.view(shape))

    def _absorbing_is_cheaper(self, edges_BVK: Tensor, passages_Np: Tensor) -> bool:
        """By FLOPs over two; on a GPU from the rule, since counting would wait for it."""
        num_items, num_tokens, num_passages = edges_BVK.shape
        if edges_BVK.is_cuda:
            edges = num_items * self.rule.expected_edges(num_tokens, num_passages)
            rows = min(num_items * num_tokens, edges)
        else:
            edges, rows = float(edges_BVK.sum()), float(edges_BVK.any(-1).sum())
        inner, width = self.heads * self.head_width, passages_Np.shape[1]
        passage_length = passages_Np.shape[0] / max(1, num_items * num_passages)
        project = 2 * passages_Np.shape[0] * width * inner + 2 * edges * passage_length * inner
        absorb = 2 * rows * width * inner + 2 * edges * passage_length * width * self.heads
        return absorb < project


def build_fusion(config: FusionConfig) -> BipartiteFusion:
    """A layer that can be saved: it carries its config."""
    layer = BipartiteFusion(
        config.width,
        config.passage_width,
        config.heads,
        rule=config.rule,
        head_width=config.head_width,
        edge_width=config.edge_width,
    )
    layer.config = config
    return layer


def flops(config: FusionConfig, edges_VK: Tensor, lengths: Sequence[int]) -> int:
    """FLOPs for one item with these edges, in the cheaper order; a multiply and an add are two."""
    num_tokens, num_passages = edges_VK.shape
    d, p = config.width, config.passage_width
    inner = config.heads * (config.head_width or d // config.heads)
    words_K = torch.as_tensor(lengths, dtype=torch.long, device=edges_VK.device)
    rows, read = int(edges_VK.any(1).sum()), int((edges_VK.any(0) * words_K).sum())
    edge_words = int((edges_VK.sum(0) * words_K).sum())
    choose = (num_tokens * d + num_passages * p + num_tokens * num_passages) * config.edge_width
    project = 2 * read * p * inner + 2 * edge_words * inner
    absorb = 2 * rows * p * inner + 2 * edge_words * p * config.heads
    return 2 * (choose + 2 * rows * d * inner + min(project, absorb))
