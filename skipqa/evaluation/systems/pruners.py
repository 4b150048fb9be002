"""Other ways to V' tokens, each in place of QVS, for any system.

Enters: a pipeline whose budget says how many tokens stay. Leaves: one that chooses them by
chance, by what they look like, by how much they resemble the question, by merging alike ones, or
by seeing the picture smaller. All but `similarity` know nothing of the question.

Shapes: V tokens, D their feature width, N tokens left on the way from V to V'.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.backbones.concepts import Concepts
from skipqa.config import PruneConfig
from skipqa.evaluation.systems.changes import (
    with_budget,
    with_components,
    with_config,
    with_stages,
)
from skipqa.nn import keep_head
from skipqa.nn.keep_head import KeepHead
from skipqa.nn.saliency import Saliency
from skipqa.pipeline import Pipeline
from skipqa.stages.prune import top_positions
from skipqa.trace import StageRecord
from skipqa.types import Budget, KeptTokens, Question, VisualTokens

# From tokens and question to a score of at least 0 a token, and what scoring cost.
Scorer = Callable[[VisualTokens, Question], tuple[Tensor, int]]


def random_pruning(base: Pipeline, seed: int) -> Pipeline:
    """As many tokens, anywhere."""
    return _by_score(base, "chance", random_scores(seed))


def attention(base: Pipeline, seed: int) -> Pipeline:
    """The tokens that a global query attends to most."""
    return _by_score(base, "attention of the mean token", attention_scores)


def similarity(base: Pipeline, seed: int) -> Pipeline:
    """The tokens nearest to the question."""
    return _by_score(base, "likeness to the question", similarity_scores)


def dynamicvit(base: Pipeline, seed: int) -> Pipeline:
    """The tokens that a predictor blind to the question wants to keep (cf. DynamicViT).

    The predictor is the component `keep_head`: no preset ships one, stage II leaves one that was
    taught as QVS is (`--components RUN/stage2`). Untrained, the vision tower's own classifier
    stands in for it: a token is kept for how sure the classifier is of what it shows.
    """
    head = base.components.keep_head
    if head is None:
        return _by_score(base, "certainty of the classifier", certainty_scores)
    return _by_score(base, "the keep head", keep_head_scores(head))


def tome(base: Pipeline, seed: int) -> Pipeline:
    """Alike tokens become one until V' are left."""
    return with_stages(base, prune=merge)


def downsample(base: Pipeline, seed: int) -> Pipeline:
    """The picture so small that it has at most V' tokens, the largest square below; all are kept.

    A drafter that learned the places of the full grid cannot read a smaller one and is left out;
    one that takes a glance of its own at the picture stays.
    """
    encode, widths = base.config.encode, base.backbone.widths
    side = math.isqrt(base.config.budget.most_tokens(encode.num_tokens))
    scales = [scale for scale in encode.scales if scale < encode.cell * side]
    system = with_config(base, encode={"scales": [*scales, encode.cell * side]})
    if widths.low_res == widths.tokens:
        system = with_components(system, drafter=None)
    return with_budget(system, tokens=side * side)


PRUNERS = {
    "random": random_pruning,
    "tome": tome,
    "dynamicvit": dynamicvit,
    "attention": attention,
    "similarity": similarity,
    "downsample": downsample,
}


def random_scores(seed: int) -> Scorer:
    """A draw for each question, the same in whatever order they come."""

    def score(tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(zlib.crc32(question.text.encode(), seed))
        return torch.rand(len(tokens), generator=generator), 0

    return score


def attention_scores(tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
    """softmax_i(<v_i, mean(v)> / sqrt(D)), as a class token would attend (cf. EViT)."""
    features_VD = tokens.features
    logits_V1 = features_VD @ features_VD.mean(0)[:, None] / features_VD.shape[1] ** 0.5
    return logits_V1[:, 0].softmax(0), 2 * features_VD.numel()


def similarity_scores(tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
    """The cosine of token and question in the text encoder's space, moved to [0, 1]."""
    cosine_V1 = tokens.meaning @ question.embedding[:, None]
    return (1 + cosine_V1[:, 0]) / 2, 2 * tokens.meaning.numel()


def certainty_scores(tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
    """1 - H(p_i) / log C of the token's evidence over C concepts."""
    entropy_V = torch.special.entr(tokens.evidence).sum(1)
    return 1 - entropy_V / math.log(tokens.evidence.shape[1]), 0


def keep_head_scores(head: KeepHead) -> Scorer:
    @torch.inference_mode()
    def score(tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
        return head(tokens.meaning).sigmoid(), keep_head.flops(head.config, len(tokens))

    return score


def _by_score(base: Pipeline, name: str, score: Scorer) -> Pipeline:
    """The V' tokens of the highest scores."""

    def prune(
        tokens: VisualTokens,
        question: Question,
        allowed: Budget,
        concepts: Concepts,
        config: PruneConfig,
        record: StageRecord,
        learned: Saliency | None = None,
    ) -> KeptTokens:
        saliency_V, record.flops = score(tokens, question)
        kept = KeptTokens(top_positions(saliency_V, allowed.tokens), saliency_V, tokens)
        record.kept, record.dropped = len(kept.positions), len(tokens) - len(kept.positions)
        record.why, record.result = f"by {name}", kept
        return kept

    return with_stages(base, prune=prune)


def merge(
    tokens: VisualTokens,
    question: Question,
    allowed: Budget,
    concepts: Concepts,
    config: PruneConfig,
    record: StageRecord,
    learned: Saliency | None = None,
) -> KeptTokens:
    """Token merging by bipartite soft matching (Bolya et al., 2023).

    In each round every second token looks for the one of the others that it resembles most, and
    the most alike pairs are joined, until V' are left. A merged token is the mean of its members
    and stands where the one stood that was joined; its saliency is its share of the grid.
    """
    V, D = tokens.features.shape
    positions = merged_into = torch.arange(V)
    sizes, features_ND, record.flops = torch.ones(V), tokens.features, 0
    while (surplus := len(positions) - allowed.tokens) > 0:
        unit_ND = F.normalize(features_ND, dim=-1)
        likeness = unit_ND[::2] @ unit_ND[1::2].T
        record.flops += 2 * likeness.numel() * D
        best = likeness.max(1)
        joining = best.values.argsort(descending=True, stable=True)[:surplus]
        target = torch.arange(V)
        target[positions[::2][joining]] = positions[1::2][best.indices[joining]]
        merged_into = target[merged_into]
        sizes = torch.bincount(merged_into, minlength=V).float()
        positions = sizes.nonzero()[:, 0]
        features_ND = _means(tokens.features, merged_into, sizes)[positions]
    joined = dataclasses.replace(
        tokens,  # what was seen of the whole picture, its words too, stays as it is
        features=_means(tokens.features, merged_into, sizes),
        evidence=_means(tokens.evidence, merged_into, sizes),
        meaning=F.normalize(_means(tokens.meaning, merged_into, sizes), dim=-1),
    )
    kept = KeptTokens(positions, sizes / V, joined, merged_into)
    record.kept, record.dropped = len(positions), V - len(positions)
    record.why, record.result = f"{V} tokens merged to {len(positions)}", kept
    return kept


def _means(values_VD: Tensor, merged_into: Tensor, sizes: Tensor) -> Tensor:
    """[V, D]: at each position the mean of what was merged into it; zeros where nothing was."""
    sums = torch.zeros_like(values_VD).index_add_(0, merged_into, values_VD)
    return sums / sizes.clamp(min=1)[:, None]
