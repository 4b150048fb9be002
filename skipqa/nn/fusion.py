"""BSCA: the layer that lets kept visual tokens read the passages they fit (equations 8, B.4, B.5).

Enters: kept visual tokens, the tokens and one embedding of every passage, packed. Leaves: the
fused tokens and the edges that survived. Work is done for tokens and passages with an edge only:
a token without one leaves exactly as it came, a passage without one is never projected.
Knows nothing of where tokens and passages come from; how edges learn is in `soft_edges.py`.

Keys and values are had in one of two orders. "project" computes them. "absorb" moves their
projections to the queries and the results (`ops/…/fused.py` has the identity), so that heads
attend to the passage tokens themselves: the cheaper one when few tokens read many.

Shape letters: B items, V visual tokens, R of them with an edge, K passages an item, N tokens of
all passages together (passage after passage, item after item), d width of a visual token, p of
a passage token, H heads, D head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from skipqa.ops.bipartite_attention import (
    bipartite_attention,
    compatibility,
    passage_mass,
    select_edges,
)
from skipqa.ops.bipartite_attention.dispatch import Compatibility, triton_is_installed

Order = Literal["project", "absorb"]

# What a multiplication inside attention costs on a CPU, in multiplications of a projection: many
# small products against one large one. Of the orders timed by benchmarks/bsca_cpu.py the faster
# is the cheaper one at any price from 1.9 to 2.3.
CPU_ATTENTION_PRICE = 2.0


@dataclass(frozen=True, slots=True)
class EdgeRule:
    """Which edges survive: the `top` fraction of an item's pairs, or as many of the best as give
    a mean of `degree` per token, or, with neither, those that reach the layer's threshold."""

    kind: Compatibility = "sigmoid"
    top: float | None = None
    degree: float | None = None

    def arguments(self, threshold: float | Tensor) -> dict[str, Any]:
        """The rule as `select_edges` and `soft_edges` take it."""
        if self.top is not None:
            return {"top": self.top}
        if self.degree is not None:
            return {"degree": self.degree}
        # Equation 8 opens an edge above tau, equation B.4 at tau_e already.
        return {"above" if self.kind == "sigmoid" else "at_least": threshold}

    def expected_edges(self, num_tokens: int, num_passages: int) -> float:
        """An upper estimate for one item, known before any score is."""
        pairs = num_tokens * num_passages
        if self.degree is not None:
            return min(pairs, self.degree * num_tokens)
        return pairs * (1.0 if self.top is None else self.top)


@dataclass(frozen=True, slots=True)
class FusionConfig:
    """Variant A keeps the top `beta` of sigmoid compatibilities, or with beta = None those above
    a learned tau; variant B as many cosines as give a mean of `degree` edges per token, or with
    degree = None those of at least tau_e."""

    width: int
    passage_width: int
    heads: int
    variant: Literal["A", "B"] = "A"
    head_width: int | None = None
    edge_width: int = 128  # d_h
    beta: float | None = 0.10
    degree: float | None = 4.0

    @property
    def inner(self) -> int:
        return self.heads * (self.head_width or self.width // self.heads)

    @property
    def rule(self) -> EdgeRule:
        if self.variant == "B":
            return EdgeRule("cosine", degree=self.degree)
        return EdgeRule("sigmoid", top=self.beta)


class Fusion(NamedTuple):
    tokens: Tensor  # the shape of the visual tokens that entered
    edges: Tensor  # [V, K] or [B, V, K] bool
    scores: Tensor  # compatibilities, the shape of `edges`


class BipartiteFusion(nn.Module):
    def __init__(self, config: FusionConfig) -> None:
        super().__init__()
        self.config, self.rule = config, config.rule
        width, passage_width, inner = config.width, config.passage_width, config.inner
        self.edge_token = nn.Linear(width, config.edge_width, bias=False)  # W_v of equation 8
        self.edge_passage = nn.Linear(passage_width, config.edge_width, bias=False)  # W_k
        # tau, where sigmoids are neutral; tau_e, as Table D.1 has it.
        self.threshold = nn.Parameter(torch.tensor(0.5 if config.variant == "A" else 0.6))
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
        edges: Tensor | None = None,
        longest: int | None = None,
        order: Order | Literal["auto"] = "auto",
    ) -> Fusion:
        """`tokens [V, d]`, `passage_tokens [N, p]`, `passage_embeddings [K, p]`, `lengths [K]`.

        A batch: `[B, V, d]`, `[N, p]` packed over all items, `[B, K, p]`, `[B, K]`. `edges`
        stand in for the layer's own choice. `longest` bounds the passage lengths; without it a GPU
        must be asked, which forbids a CUDA graph.
        """
        batched = tokens.dim() == 3
        tokens_BVd = tokens if batched else tokens[None]
        embeddings_BKp = passage_embeddings if batched else passage_embeddings[None]
        lengths_BK = torch.as_tensor(lengths, dtype=torch.long, device=tokens.device)
        lengths_BK = lengths_BK.reshape(embeddings_BKp.shape[:2])
        if edges is None:
            scores_BVK, edges_BVK = self.choose(tokens_BVd, embeddings_BKp, lengths_BK)
        else:
            scores_BVK = self.compatibility(tokens_BVd, embeddings_BKp)
            edges_BVK = edges if batched else edges[None]
        if tokens.is_cuda:
            fused_BVd = self._fuse_batch(
                tokens_BVd, passage_tokens, edges_BVK, lengths_BK, order, longest
            )
        else:
            passages = passage_tokens.split(lengths_BK.sum(1).tolist())
            items = zip(tokens_BVd, passages, edges_BVK, lengths_BK, strict=True)
            fused_BVd = torch.stack([self._fuse_item(*item, order) for item in items])
        found = Fusion(fused_BVd, edges_BVK, scores_BVK)
        return found if batched else Fusion(*(x[0] for x in found))

    def choose(
        self, tokens_BVd: Tensor, embeddings_BKp: Tensor, lengths_BK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scores and surviving edges, [B, V, K] each; on a GPU, for inference, in two launches."""
        top, degree = self.rule.top, self.rule.degree
        same = tokens_BVd.dtype == embeddings_BKp.dtype == self.edge_token.weight.dtype
        counted = top is not None or degree is not None
        if tokens_BVd.is_cuda and same and counted and triton_is_installed():
            from skipqa.ops.bipartite_attention import selection

            sizes = (*tokens_BVd.shape[:2], embeddings_BKp.shape[1])
            if selection.pays(*sizes) and not self._learns(tokens_BVd, embeddings_BKp):
                weights = (self.edge_token.weight, self.edge_passage.weight)
                return selection.choose_edges(
                    tokens_BVd, embeddings_BKp, weights, lengths_BK, self.rule.kind, top, degree
                )
        scores_BVK = self.compatibility(tokens_BVd, embeddings_BKp)
        rule = self.rule.arguments(self.threshold)
        return scores_BVK, select_edges(scores_BVK, **rule, lengths=lengths_BK)

    def compatibility(self, tokens: Tensor, passage_embeddings: Tensor) -> Tensor:
        return compatibility(
            self.edge_token(tokens), self.edge_passage(passage_embeddings), kind=self.rule.kind
        )

    def mass(
        self,
        tokens_Vd: Tensor,
        passages_Np: Tensor,
        edges_VK: Tensor,
        lengths: Tensor | Sequence[int],
    ) -> Tensor:
        """[V, K] the fraction of a token's attention that a passage received, of one item."""
        q_VHD, k_NHD = (
            self.split_heads(project(x))
            for project, x in ((self.query, tokens_Vd), (self.key, passages_Np))
        )
        return passage_mass(q_VHD, k_NHD, edges_VK, lengths)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.config.heads, -1))

    def _fuse_item(
        self,
        tokens_Vd: Tensor,
        passages_Np: Tensor,
        edges_VK: Tensor,
        lengths_K: Tensor,
        order: Order | Literal["auto"],
    ) -> Tensor:
        """One item on a CPU: what has no edge is left out before anything is computed."""
        reads_V, read_K = edges_VK.any(1), edges_VK.any(0)
        if not bool(reads_V.any()):
            return tokens_Vd
        if not bool(read_K.all()):
            passages_Np = passages_Np[torch.repeat_interleave(read_K, lengths_K)]
            edges_VK, lengths_K = edges_VK[:, read_K], lengths_K[read_K]
        edges_RK = edges_VK[reads_V]
        if order == "auto":
            counts = _counts(edges_RK, lengths_K)
            order, _ = cheaper_order(self.config, *counts, CPU_ATTENTION_PRICE)
        attend = self._absorb if order == "absorb" else self._project
        q_RHD = self.split_heads(self.query(tokens_Vd[reads_V]))
        read_RHD = attend(q_RHD, passages_Np, edges_RK, lengths_K)
        fused_Vd = tokens_Vd.clone()
        fused_Vd[reads_V] = tokens_Vd[reads_V] + self.out(read_RHD.flatten(1))
        return fused_Vd

    def _project(
        self, q_RHD: Tensor, passages_Np: Tensor, edges_RK: Tensor, lengths_K: Tensor
    ) -> Tensor:
        k_NHD, v_NHD = (self.split_heads(f(passages_Np)) for f in (self.key, self.value))
        return bipartite_attention(q_RHD, k_NHD, v_NHD, edges_RK, lengths_K)

    def _absorb(
        self, q_RHD: Tensor, passages_Np: Tensor, edges_RK: Tensor, lengths_K: Tensor
    ) -> Tensor:
        """A head becomes one more token that reads passage tokens."""
        _, num_heads, head_width = q_RHD.shape
        key_HDp, value_HDp = (
            f.weight.view(num_heads, head_width, -1) for f in (self.key, self.value)
        )
        query_RHp = torch.einsum("rhd,hdp->rhp", q_RHD, key_HDp)
        shared_N1p = passages_Np[:, None, :]
        context_RHp = bipartite_attention(
            query_RHp.flatten(0, 1)[:, None, :],
            shared_N1p,
            shared_N1p,
            edges_RK.repeat_interleave(num_heads, dim=0),
            lengths_K,
            scale=1.0 / math.sqrt(head_width),
        ).view_as(query_RHp)
        return torch.einsum("rhp,hdp->rhd", context_RHp, value_HDp)

    def _fuse_batch(
        self,
        tokens_BVd: Tensor,
        passages_Np: Tensor,
        edges_BVK: Tensor,
        lengths_BK: Tensor,
        order: Order | Literal["auto"],
        longest: int | None,
    ) -> Tensor:
        """On a GPU, where to leave anything out one would have to wait for the number of edges:
        the kernels skip by themselves."""
        learns = self._learns(tokens_BVd, passages_Np)
        if order == "auto":
            can_absorb = triton_is_installed() and not learns
            order = self._gpu_order(edges_BVK, passages_Np) if can_absorb else "project"
        if order == "absorb":
            from skipqa.ops.bipartite_attention import fused

            assert not learns, "the fused kernel has no backward pass"
            return fused.fusion_layer(
                tokens_BVd,
                passages_Np,
                fused.Weights(*(f.weight for f in (self.query, self.key, self.value, self.out))),
                edges_BVK,
                lengths_BK,
                self.config.heads,
                1.0 / math.sqrt(self.config.inner // self.config.heads),
                int(lengths_BK.max()) if longest is None else longest,
            )
        q_BVHD = self.split_heads(self.query(tokens_BVd))
        read_BVHD = self._project(q_BVHD, passages_Np, edges_BVK, lengths_BK)
        return tokens_BVd + self.out(read_BVHD.flatten(2))

    def _learns(self, *inputs: Tensor) -> bool:
        return torch.is_grad_enabled() and any(
            x.requires_grad for x in (*inputs, *self.parameters())
        )

    def _gpu_order(self, edges_BVK: Tensor, passages_Np: Tensor) -> Order:
        """From the rule and the shapes: to look at the edges one would have to wait for them."""
        from skipqa.ops.bipartite_attention.fused import HEADS_A_TILE

        if self.config.heads % HEADS_A_TILE:
            return "project"
        num_items, num_tokens, num_passages = edges_BVK.shape
        edges = num_items * self.rule.expected_edges(num_tokens, num_passages)
        rows = min(num_items * num_tokens, edges)
        words = len(passages_Np)
        edge_words = edges * words / max(1, num_items * num_passages)
        return cheaper_order(self.config, rows, words, edge_words)[0]


def cheaper_order(
    config: FusionConfig,
    rows: float,
    words: float,
    edge_words: float,
    attention_price: float = 1.0,
) -> tuple[Order, float]:
    """The order that costs less, and its multiplications: for `rows` tokens with an edge, `words`
    in the passages with one, and `edge_words` over all edges."""
    p, inner = config.passage_width, config.inner
    projecting: dict[Order, float] = {
        "project": 2 * words * p * inner,
        "absorb": 2 * rows * p * inner,
    }
    attending: dict[Order, float] = {
        "project": 2 * edge_words * inner,
        "absorb": 2 * edge_words * p * config.heads,
    }
    best = min(projecting, key=lambda o: projecting[o] + attention_price * attending[o])
    return best, projecting[best] + attending[best]


def flops(config: FusionConfig, edges_VK: Tensor, lengths: Sequence[int]) -> int:
    """FLOPs for one item with these edges on a CPU; a multiply and an add are two."""
    num_tokens, num_passages = edges_VK.shape
    words_K = torch.as_tensor(lengths, dtype=torch.long, device=edges_VK.device)
    counts = _counts(edges_VK, words_K)
    choose = num_tokens * config.width + num_passages * config.passage_width
    choose = (choose + num_tokens * num_passages) * config.edge_width
    query_and_out = 2 * counts[0] * config.width * config.inner
    _, between = cheaper_order(config, *counts, CPU_ATTENTION_PRICE)
    return 2 * (choose + query_and_out + int(between))


def mass_flops(config: FusionConfig, edges_VK: Tensor, lengths: Sequence[int]) -> int:
    """FLOPs of `BipartiteFusion.mass`."""
    words_K = torch.as_tensor(lengths, dtype=torch.long)
    edge_words = int((edges_VK.sum(0) * words_K).sum())
    projecting = len(edges_VK) * config.width + int(words_K.sum()) * config.passage_width
    return 2 * (projecting + edge_words) * config.inner


def _counts(edges_VK: Tensor, lengths_K: Tensor) -> tuple[int, int, int]:
    """Tokens with an edge, words of passages with one, words over all edges."""
    return (
        int(edges_VK.any(1).sum()),
        int((edges_VK.any(0) * lengths_K).sum()),
        int((edges_VK.sum(0) * lengths_K).sum()),
    )
