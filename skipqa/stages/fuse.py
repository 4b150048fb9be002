"""fuse: attend only along the (token, passage) edges that matter (BSCA).

A trained layer projects, chooses edges and attends. Without one: evidence already lives in the
text encoder's space, so compatibility is read there with no projection: A_ij = nu_j cos(v_i +
q, k_j), the token in the light of the question against the passage, as far as that was
verified; the top beta of all pairs, or as many as give the mean degree, stay edges. A token then
attends to every word of the passages it has an edge to; a token without edges stays as it is, and
a passage without edges is never read.
"""

from __future__ import annotations

import torch

from skipqa.config import FuseConfig
from skipqa.nn import fusion
from skipqa.nn.fusion import BipartiteFusion
from skipqa.ops.bipartite_attention import (
    bipartite_attention,
    compatibility,
    passage_mass,
    select_edges,
)
from skipqa.trace import StageRecord
from skipqa.types import Fused, KeptTokens, Question, Verified


@torch.inference_mode()
def fuse(
    kept: KeptTokens,
    question: Question,
    verified: Verified,
    config: FuseConfig,
    record: StageRecord,
    learned: BipartiteFusion | None = None,
) -> Fused:
    tokens_VD = kept.tokens.meaning[kept.positions]
    num_tokens, width = tokens_VD.shape
    num_passages = len(verified.passages)
    lengths = [len(states) for states in verified.token_states]
    states_ND = torch.cat(verified.token_states) if lengths else tokens_VD[:0]
    if learned is None:
        asking_VD = tokens_VD + question.embedding
        scores_VK = compatibility(asking_VD, verified.embeddings, kind="cosine")
        scores_VK = scores_VK * torch.tensor(verified.scores)
        prob = config.edges == "fraction"
        edges_VK = select_edges(
            scores_VK,
            top=config.beta if prob else None,
            degree=None if prob else config.degree,
        )
        heads_VHD, states_NHD = asking_VD[:, None, :], states_ND[:, None, :]
        attended = bipartite_attention(heads_VHD, states_NHD, states_NHD, edges_VK, lengths)
        fused_VD = tokens_VD + attended[:, 0]
        mass_VK = passage_mass(heads_VHD, states_NHD, edges_VK, lengths)
        edge_words = int((edges_VK.sum(0) * torch.tensor(lengths, dtype=torch.long)).sum())
        record.flops = 2 * num_tokens * num_passages * width + 6 * edge_words * width
    else:
        fused_VD, edges_VK, scores_VK = learned(tokens_VD, states_ND, verified.embeddings, lengths)
        # The layer keeps its attention to itself: a token's share is split over its edges.
        mass_VK = edges_VK / edges_VK.sum(1, keepdim=True).clamp(min=1)
        record.flops = fusion.flops(learned.config, edges_VK, lengths)
    num_edges = int(edges_VK.sum())
    record.kept, record.dropped = num_edges, num_tokens * num_passages - num_edges
    record.why = f"{num_edges} of {num_tokens} x {num_passages} edges"
    record.result = Fused(fused_VD, edges_VK, tuple(mass_VK.sum(0).tolist()))
    return record.result
