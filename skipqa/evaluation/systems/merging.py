"""Pruners that merge similar tokens: token merging, and pruning by the question before it.

Enters: a state with tokens, question and budget. Leaves: the same with at most V' tokens, each the
mean of those that were merged into it.

Shapes: V tokens, D their feature width, T question tokens, N tokens left on the way from V to V'.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.stages.prune import top_positions
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import DROPPED, KeptTokens, Question, VisualTokens


class Merged(NamedTuple):
    positions: Tensor  # [V'] of the tokens that are left, ascending
    merged_into: Tensor  # [V] the one that each went into, or DROPPED
    sizes: Tensor  # [V] how many went into each
    flops: int


class MergeTokens:
    """prune: token merging by bipartite soft matching (Bolya et al., 2023).

    In each round every second token looks for the most similar of the others, and the most similar
    pairs are joined, until V' are left. A merged token is the mean of its members, at the position
    of the one that was joined; its saliency is its fraction of the grid.
    """

    def __call__(self, state: State, record: StageRecord) -> State:
        tokens, V = state.tokens, len(state.tokens)
        merged = merge(tokens.features, self.before(tokens.features), state.budget.tokens)
        record.flops = merged.flops
        record.kept, record.dropped = len(merged.positions), V - len(merged.positions)
        record.why = f"{V} tokens merged to {len(merged.positions)}"
        return state.add(kept=_kept(tokens, merged, merged.sizes / V))

    def before(self, features_VD: Tensor) -> Tensor:
        """[V]: what each token is merged into to begin with, itself."""
        return torch.arange(len(features_VD))


class MergeFurther(MergeTokens):
    """prune: the same after a vision encoder that merges. What it has merged are equal tokens."""

    def before(self, features_VD: Tensor) -> Tensor:
        """[V]: for each token the first that equals it."""
        _, group_V = features_VD.unique(dim=0, return_inverse=True)
        places = torch.arange(len(group_V))
        return places.scatter_reduce(0, group_V, places, "amin", include_self=False)[group_V]


def merge_tokens(parts: Parts) -> MergeTokens:
    return MergeTokens()


def merge_further(parts: Parts) -> MergeFurther:
    return MergeFurther()


class PruneAndMerge:
    """prune: text-informed pruning, then modality-aware merging (Cao et al., 2023).

    A token's saliency is the attention that the question's tokens pay to it, on average: theirs is
    the text encoder's space, where a visual token is what it means. The least salient are dropped
    and the rest merged as in `tome`; both steps leave the same fraction, so the first goes from V
    to sqrt(V V'). The original alternates the two between the layers of a cross-modal encoder and
    merges the question's tokens among themselves, too. Here both happen once, before there is
    anything to save on the side of the question.
    """

    def __call__(self, state: State, record: StageRecord) -> State:
        tokens, V, most = state.tokens, len(state.tokens), state.budget.tokens
        attention_V, flops = text_attention(tokens, state.question)
        salient = top_positions(attention_V, math.ceil(math.sqrt(V * min(most, V))))
        kept_V = torch.full((V,), DROPPED)
        kept_V[salient] = salient
        merged = merge(tokens.features, kept_V, most)
        record.flops = flops + merged.flops
        record.kept, record.dropped = len(merged.positions), V - len(merged.positions)
        record.why = f"{V} tokens pruned to {len(salient)}, merged to {len(merged.positions)}"
        saliency_V = attention_V.clone()  # of a merged token: all that its members get
        saliency_V[merged.positions] = _sums(attention_V, merged.merged_into)[merged.positions]
        return state.add(kept=_kept(tokens, merged, saliency_V))


def prune_and_merge(parts: Parts) -> PruneAndMerge:
    return PruneAndMerge()


def text_attention(tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
    """[V]: mean_t softmax_i(<q_t, v_i> / sqrt(D)), and its FLOPs."""
    logits_TV = question.states @ tokens.meaning.T / tokens.meaning.shape[1] ** 0.5
    return logits_TV.softmax(1).mean(0), 2 * len(question.states) * tokens.meaning.numel()


def merge(features_VD: Tensor, merged_into: Tensor, count: int) -> Merged:
    """Merges further, until at most `count` are left; what was dropped stays so."""
    V, D = features_VD.shape
    merged_into, flops = merged_into.clone(), 0
    sizes = _sums(torch.ones(V), merged_into)
    positions = sizes.nonzero()[:, 0]
    features_ND = _means(features_VD, merged_into, sizes)[positions]
    while (surplus := len(positions) - count) > 0:
        unit_ND = F.normalize(features_ND, dim=-1)
        cosine = unit_ND[::2] @ unit_ND[1::2].T
        flops += 2 * cosine.numel() * D
        best = cosine.max(1)
        joining = best.values.argsort(descending=True, stable=True)[:surplus]
        target = torch.arange(V)
        target[positions[::2][joining]] = positions[1::2][best.indices[joining]]
        there = merged_into != DROPPED
        merged_into[there] = target[merged_into[there]]
        sizes = _sums(torch.ones(V), merged_into)
        positions = sizes.nonzero()[:, 0]
        features_ND = _means(features_VD, merged_into, sizes)[positions]
    return Merged(positions, merged_into, sizes, flops)


def _kept(tokens: VisualTokens, merged: Merged, saliency_V: Tensor) -> KeptTokens:
    _, merged_into, sizes, _ = merged
    joined = dataclasses.replace(
        tokens,  # what was seen of the whole image, its words too, stays as it is
        features=_means(tokens.features, merged_into, sizes),
        concept_probs=_means(tokens.concept_probs, merged_into, sizes),
        meaning=F.normalize(_means(tokens.meaning, merged_into, sizes), dim=-1),
    )
    return KeptTokens(merged.positions, saliency_V, joined, merged_into)


def _means(values_VD: Tensor, merged_into: Tensor, sizes: Tensor) -> Tensor:
    """[V, D]: at each position the mean of what was merged into it; zeros where nothing was."""
    return _sums(values_VD, merged_into) / sizes.clamp(min=1)[:, None]


def _sums(values: Tensor, merged_into: Tensor) -> Tensor:
    """At each position the sum of what was merged into it."""
    there = merged_into != DROPPED
    return torch.zeros_like(values).index_add_(0, merged_into[there], values[there])
