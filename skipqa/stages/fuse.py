"""fuse: attend only along the (token, passage) edges that matter (BSCA).

A trained layer projects, chooses edges and attends. Untrained, evidence already lives in the text
encoder's space, so compatibility needs no projection: A_ij = nu_j cos(v_i + q, k_j), the token
given the question against the passage, weighted by its verification. The top beta of all pairs, or
as many as give the mean degree, stay edges. A token attends to every word of the passages it has an
edge to; a token without edges stays as it is, and a passage without edges is never read.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from skipqa.config import FuseConfig
from skipqa.nn import fusion as network
from skipqa.nn.fusion import BipartiteFusion
from skipqa.ops.bipartite_attention import (
    bipartite_attention,
    compatibility,
    passage_mass,
    select_edges,
)
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Fused, Question, Verified


class Fuser(Protocol):
    def __call__(
        self,
        tokens_VD: Tensor,
        question: Question,
        verified: Verified,
        edges_VK: Tensor | None = None,
    ) -> tuple[Fused, int]:
        """The kept tokens after reading the passages, and its FLOPs. Given edges, such as paths
        over several rounds, stand in for its own choice."""


class CosineFuser:
    """Training-free: the formula at the head of this file."""

    def __init__(self, config: FuseConfig) -> None:
        by_fraction = config.edges == "fraction"
        self.top = config.beta if by_fraction else None
        self.degree = None if by_fraction else config.degree

    def __call__(
        self,
        tokens_VD: Tensor,
        question: Question,
        verified: Verified,
        edges_VK: Tensor | None = None,
    ) -> tuple[Fused, int]:
        states_ND, lengths = _words(tokens_VD, verified)
        asking_VD = tokens_VD + question.embedding
        flops = 0
        if edges_VK is None:
            scores_VK = compatibility(asking_VD, verified.embeddings, kind="cosine")
            scores_VK = scores_VK * torch.tensor(verified.scores)
            edges_VK = select_edges(scores_VK, top=self.top, degree=self.degree)
            flops = 2 * scores_VK.numel() * tokens_VD.shape[1]
        heads_VHD, states_NHD = asking_VD[:, None, :], states_ND[:, None, :]
        attended = bipartite_attention(heads_VHD, states_NHD, states_NHD, edges_VK, lengths)
        fused_VD = tokens_VD + attended[:, 0]
        mass_VK = passage_mass(heads_VHD, states_NHD, edges_VK, lengths)
        edge_words = int((edges_VK.sum(0) * torch.tensor(lengths, dtype=torch.long)).sum())
        flops += 6 * edge_words * tokens_VD.shape[1]
        return Fused(fused_VD, edges_VK, tuple(mass_VK.sum(0).tolist()), mass_VK), flops


class TrainedFuser:
    def __init__(self, layer: BipartiteFusion) -> None:
        self.layer = layer

    def __call__(
        self,
        tokens_VD: Tensor,
        question: Question,
        verified: Verified,
        edges_VK: Tensor | None = None,
    ) -> tuple[Fused, int]:
        states_ND, lengths = _words(tokens_VD, verified)
        fused_VD, edges_VK, _ = self.layer(
            tokens_VD, states_ND, verified.embeddings, lengths, edges=edges_VK
        )
        # The layer does not return its attention: a token's mass is split evenly over its edges.
        mass_VK = edges_VK / edges_VK.sum(1, keepdim=True).clamp(min=1)
        flops = network.flops(self.layer.config, edges_VK, lengths)
        return Fused(fused_VD, edges_VK, tuple(mass_VK.sum(0).tolist()), mass_VK), flops


class Fuse:
    def __init__(self, fuser: Fuser) -> None:
        self.fuser = fuser

    @torch.inference_mode()
    def __call__(self, state: State, record: StageRecord) -> State:
        tokens_VD = state.kept.meaning
        fused, record.flops = self.fuser(tokens_VD, state.question, state.verified)
        num_edges, (num_tokens, num_passages) = int(fused.edges.sum()), fused.edges.shape
        record.kept, record.dropped = num_edges, num_tokens * num_passages - num_edges
        record.why = f"{num_edges} of {num_tokens} x {num_passages} edges"
        return state.add(fused=fused)


def build(parts: Parts) -> Fuse:
    return Fuse(build_fuser(parts))


def build_fuser(parts: Parts) -> Fuser:
    layer = parts.components.fusion
    return CosineFuser(parts.config.fuse) if layer is None else TrainedFuser(layer)


def _words(tokens_VD: Tensor, verified: Verified) -> tuple[Tensor, list[int]]:
    """The states of all words of all passages, and how many each passage has."""
    lengths = [len(states) for states in verified.token_states]
    return torch.cat(verified.token_states) if lengths else tokens_VD[:0], lengths
