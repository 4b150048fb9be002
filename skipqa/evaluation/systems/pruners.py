"""Other ways to choose the V' tokens, each in place of QVS, for any system.

Enters: a pipeline whose budget says how many tokens stay. Leaves: one that chooses them at random,
by their looks, by their similarity to the question, by merging similar ones (`merging.py`), or by
encoding the image at a lower resolution. All but `qvs`, `similarity` and `pumer` ignore the
question.

To add one, write a `TokenScorer` and a function from a pipeline to `by_score(pipeline, scorer)`, or
to `pipeline.with_stages(prune=…)` with a whole stage, and add the function to `PRUNERS`; its
docstring is what `skipqa eval systems` shows. `skipqa eval … --pruner qvs --pruner yours` then
compares both at the same V'.

Shapes: V tokens, D their feature width, K samples.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from skipqa.backbones.presets.clip_vicuna import ClipVicuna
from skipqa.errors import UserError
from skipqa.evaluation.systems.budgets import with_budget
from skipqa.evaluation.systems.merging import merge_further, merge_tokens, prune_and_merge
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


def tome_in_encoder(base: Pipeline, seed: int) -> Pipeline:
    """As tome, but similar tokens become one between the layers of the vision encoder already, as
    many in each, which saves encoding them. Needs a preset with a ViT."""
    preset, backbone = base.config.preset, base.backbone
    if not isinstance(backbone, ClipVicuna):
        raise UserError(
            f"tome-in-encoder needs a ViT and {preset} has none: use submission-7b or ablation-13b"
        )
    num_tokens = base.config.encode.num_tokens
    layers = backbone.clip_config.vision.layers - 1  # the last serves the class token
    per_layer = (num_tokens - base.config.budget.kept_tokens(num_tokens)) // layers
    merging = base.with_backbone(backbone.merging(per_layer))
    return regions_alike(merging).with_stages(prune=merge_further)


def ats(base: Pipeline, seed: int) -> Pipeline:
    """At most V' tokens, drawn by how much they matter to the whole: fewer where few do (ATS)."""
    return regions_alike(base).with_stages(prune=sample_tokens)


def pumer(base: Pipeline, seed: int) -> Pipeline:
    """Tokens that the question attends to least are dropped, then similar ones merged (PuMer)."""
    return regions_alike(base).with_stages(prune=prune_and_merge)


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
    "tome-in-encoder": tome_in_encoder,
    "pumer": pumer,
    "ats": ats,
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


class SampleTokens:
    """prune: adaptive token sampling (Fayyaz et al., 2022).

    A token's significance is the attention it gets from the class token times the norm of its
    value, normalised to a distribution. At K = V' fixed steps, 1/2K, 3/2K, ..., the cumulative
    distribution over the grid is inverted; a token that is met several times is kept once, so the
    number kept adapts to the image. Our tokens come without a class token and without values: the
    mean token attends, as in `attention`, and features are their own values. A budget of all
    tokens asks for no sampling.
    """

    def __call__(self, state: State, record: StageRecord) -> State:
        significance_V, record.flops = significance(state.tokens, state.question)
        V, K = len(significance_V), state.budget.tokens
        positions = torch.arange(V) if K >= V else sampled(significance_V, K)
        record.kept, record.dropped = len(positions), V - len(positions)
        record.why = f"{K} samples by significance"
        return state.add(kept=KeptTokens(positions, significance_V, state.tokens))


def sample_tokens(parts: Parts) -> SampleTokens:
    return SampleTokens()


def significance(tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
    """[V], a distribution over the tokens, and its FLOPs."""
    attention_V, flops = AttentionScorer()(tokens, question)
    mattering_V = attention_V * tokens.features.norm(dim=1)
    return mattering_V / mattering_V.sum(), flops


def sampled(significance_V: Tensor, num_samples: int) -> Tensor:
    """The positions that equal steps of the cumulative distribution fall on, ascending."""
    cumulative_V = significance_V.double().cumsum(0)
    steps_K = (torch.arange(num_samples, dtype=torch.float64) + 0.5) / num_samples
    return torch.searchsorted(cumulative_V, steps_K.clamp(max=cumulative_V[-1])).unique()
