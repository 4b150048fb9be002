"""Other ways to choose the V' tokens, each in place of QVS, for any system.

Enters: a pipeline whose budget says how many tokens stay. Leaves: one that chooses them at random,
by their looks, by their similarity to the question, by merging similar ones, or by encoding the
image at a lower resolution. All but `qvs` and `similarity` ignore the question.

To add one, write a `TokenScorer` and a function from a pipeline to `by_score(pipeline, scorer)`, or
to `pipeline.with_stages(prune=…)` with a whole stage, and add the function to `PRUNERS`; its
docstring is what `skipqa eval systems` shows. `skipqa eval … --pruner qvs --pruner yours` then
compares both at the same V'.

Shapes: V tokens, D their feature width, N tokens left on the way from V to V'.
"""

from __future__ import annotations

import dataclasses
import math
import zlib

import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.evaluation.systems.budgets import with_budget
from skipqa.nn import keep_head
from skipqa.nn.keep_head import KeepHead
from skipqa.pipeline import Pipeline
from skipqa.stages.prune import Prune, TokenScorer
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import KeptTokens, Question, VisualTokens


def qvs(base: Pipeline, seed: int) -> Pipeline:
    """The system's own choice."""
    return base


def random_pruning(base: Pipeline, seed: int) -> Pipeline:
    """The same number of tokens, anywhere."""
    return by_score(base, RandomScorer(seed))


def attention(base: Pipeline, seed: int) -> Pipeline:
    """The tokens that a global query attends to most."""
    return by_score(base, AttentionScorer())


def similarity(base: Pipeline, seed: int) -> Pipeline:
    """The tokens closest to the question."""
    return by_score(base, SimilarityScorer())


def dynamicvit(base: Pipeline, seed: int) -> Pipeline:
    """The tokens that a predictor blind to the question keeps (cf. DynamicViT).

    The predictor is the component `keep_head`: no preset has one, stage II leaves one that was
    trained as QVS is (`--components RUN/stage2`). Untrained, the vision encoder's own classifier
    stands in for it: a token is kept for how certain the classifier is of what it shows.
    """
    head = base.components.keep_head
    return by_score(base, CertaintyScorer() if head is None else KeepHeadScorer(head))


def tome(base: Pipeline, seed: int) -> Pipeline:
    """Similar tokens become one until V' are left."""
    return regions_alike(base).with_stages(prune=merge_tokens)


def downsample(base: Pipeline, seed: int) -> Pipeline:
    """The image so small that it has at most V' tokens, the largest square below; all are kept.

    A drafter that learned the positions of the full grid cannot read a smaller one and is left
    out; one with a low-resolution view of its own stays.
    """
    encode, widths = base.config.encode, base.backbone.widths
    side = math.isqrt(base.config.budget.kept_tokens(encode.num_tokens))
    scales = [scale for scale in encode.scales if scale < encode.cell * side]
    system = base.with_config(encode={"scales": [*scales, encode.cell * side]})
    if widths.low_res == widths.tokens:
        system = system.with_components(drafter=None)
    return with_budget(system, tokens=side * side)


PRUNERS = {
    "qvs": qvs,
    "random": random_pruning,
    "tome": tome,
    "dynamicvit": dynamicvit,
    "attention": attention,
    "similarity": similarity,
    "downsample": downsample,
}


def by_score(base: Pipeline, scorer: TokenScorer) -> Pipeline:
    """The V' tokens of the highest scores."""
    return regions_alike(base).with_stages(prune=lambda parts: Prune(scorer))


def regions_alike(base: Pipeline) -> Pipeline:
    """What a region finds does not count by its saliency: that was trained to be a probability,
    and other scores are none."""
    return base.with_config(retrieve={"region_sharpness": 0.0})


class RandomScorer:
    """One draw per question, the same in whatever order they come."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(zlib.crc32(question.text.encode(), self.seed))
        return torch.rand(len(tokens), generator=generator), 0

    def why(self, question: Question) -> str:
        return "at random"


class AttentionScorer:
    """softmax_i(<v_i, mean(v)> / sqrt(D)), as a class token would attend (cf. EViT)."""

    def __call__(self, tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
        features_VD = tokens.features
        logits_V1 = features_VD @ features_VD.mean(0)[:, None] / features_VD.shape[1] ** 0.5
        return logits_V1[:, 0].softmax(0), 2 * features_VD.numel()

    def why(self, question: Question) -> str:
        return "by attention of the mean token"


class SimilarityScorer:
    """The cosine of token and question in the text encoder's space, moved to [0, 1]."""

    def __call__(self, tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
        cosine_V1 = tokens.meaning @ question.embedding[:, None]
        return (1 + cosine_V1[:, 0]) / 2, 2 * tokens.meaning.numel()

    def why(self, question: Question) -> str:
        return "by similarity to the question"


class CertaintyScorer:
    """1 - H(p_i) / log C of the token's evidence over C concepts."""

    def __call__(self, tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
        entropy_V = torch.special.entr(tokens.concept_probs).sum(1)
        return 1 - entropy_V / math.log(tokens.concept_probs.shape[1]), 0

    def why(self, question: Question) -> str:
        return "by certainty of the classifier"


class KeepHeadScorer:
    def __init__(self, head: KeepHead) -> None:
        self.head = head

    @torch.inference_mode()
    def __call__(self, tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
        saliency_V = self.head(tokens.meaning).sigmoid()
        return saliency_V, keep_head.flops(self.head.config, len(tokens))

    def why(self, question: Question) -> str:
        return "by the keep head"


class MergeTokens:
    """prune: token merging by bipartite soft matching (Bolya et al., 2023).

    In each round every second token looks for the most similar of the others, and the most similar
    pairs are joined, until V' are left. A merged token is the mean of its members, at the position
    of the one that was joined; its saliency is its fraction of the grid.
    """

    def __call__(self, state: State, record: StageRecord) -> State:
        tokens = state.tokens
        V, D = tokens.features.shape
        positions = merged_into = torch.arange(V)
        sizes, features_ND, record.flops = torch.ones(V), tokens.features, 0
        while (surplus := len(positions) - state.budget.tokens) > 0:
            unit_ND = F.normalize(features_ND, dim=-1)
            cosine = unit_ND[::2] @ unit_ND[1::2].T
            record.flops += 2 * cosine.numel() * D
            best = cosine.max(1)
            joining = best.values.argsort(descending=True, stable=True)[:surplus]
            target = torch.arange(V)
            target[positions[::2][joining]] = positions[1::2][best.indices[joining]]
            merged_into = target[merged_into]
            sizes = torch.bincount(merged_into, minlength=V).float()
            positions = sizes.nonzero()[:, 0]
            features_ND = _means(tokens.features, merged_into, sizes)[positions]
        merged = dataclasses.replace(
            tokens,  # what was seen of the whole image, its words too, stays as it is
            features=_means(tokens.features, merged_into, sizes),
            concept_probs=_means(tokens.concept_probs, merged_into, sizes),
            meaning=F.normalize(_means(tokens.meaning, merged_into, sizes), dim=-1),
        )
        record.kept, record.dropped = len(positions), V - len(positions)
        record.why = f"{V} tokens merged to {len(positions)}"
        return state.add(kept=KeptTokens(positions, sizes / V, merged, merged_into))


def merge_tokens(parts: Parts) -> MergeTokens:
    return MergeTokens()


def _means(values_VD: Tensor, merged_into: Tensor, sizes: Tensor) -> Tensor:
    """[V, D]: at each position the mean of what was merged into it; zeros where nothing was."""
    sums = torch.zeros_like(values_VD).index_add_(0, merged_into, values_VD)
    return sums / sizes.clamp(min=1)[:, None]
