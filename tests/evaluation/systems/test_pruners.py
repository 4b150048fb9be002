"""Other pruners: as many tokens as allowed, chosen as they say, at the cost they say."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from skipqa.config import RegionsConfig
from skipqa.costs.flops import count_flops
from skipqa.errors import UserError
from skipqa.evaluation import systems
from skipqa.evaluation.systems import PRUNERS, Variant, merging, pruners
from skipqa.nn.drafter import Drafter, DrafterConfig
from skipqa.nn.keep_head import KeepHead, KeepHeadConfig
from skipqa.pipeline import Answer, Pipeline
from skipqa.stages.regions import ClusterProposer, FindRegions
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import (
    DROPPED,
    Budget,
    KeptTokens,
    Question,
    Region,
    SeenWords,
    VisualTokens,
)

Ask = Callable[[Variant | str], Answer]
Two = tuple[Question, Question]
ELSEWHERE = ("qvs", "downsample", "tome-in-encoder")
IN_PLACE = [name for name in PRUNERS if name not in ELSEWHERE]  # of the prune stage


def prune(
    pipeline: Pipeline, name: str, tokens: VisualTokens, asked: Question, count: int
) -> tuple[KeptTokens, StageRecord]:
    stage = systems.build(Variant("skip", name), pipeline).stages["prune"]
    record = StageRecord("prune")
    return stage(entering(tokens, asked, count), record).kept, record


def entering(tokens: VisualTokens, asked: Question, count: int) -> State:
    given = State("nowhere.png", asked.text)
    return given.add(tokens=tokens, question=asked, budget=Budget(count, 1))


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_pruner_keeps_what_is_allowed_at_the_cost_it_says(
    pipeline: Pipeline, tokens: VisualTokens, questions: Two, name: str
) -> None:
    for count in (1, 5, 17, 36, 50):
        kept, record = prune(pipeline, name, tokens, questions[0], count)
        allowed = min(count, 36)
        # Sampling may meet a token several times.
        assert (
            0 < len(kept.positions) <= allowed if name == "ats" else len(kept.positions) == allowed
        )
        assert record.kept == len(kept.positions)
        assert kept.positions.tolist() == sorted(set(kept.positions.tolist()))
        assert record.dropped == 36 - len(kept.positions)
        assert (kept.saliency >= 0).all()
        counted = count_flops(lambda n=count: prune(pipeline, name, tokens, questions[0], n))
        assert record.flops == counted
    assert kept.positions.tolist() == list(range(36))
    torch.testing.assert_close(kept.tokens.features, tokens.features)


@pytest.mark.parametrize("name", IN_PLACE)
def test_only_some_pruners_know_the_question(
    pipeline: Pipeline, tokens: VisualTokens, questions: Two, name: str
) -> None:
    one, other = (prune(pipeline, name, tokens, asked, 9)[0].positions for asked in questions)
    # Chance draws anew for each question, without knowing what it asks.
    assert torch.equal(one, other) == (name not in ("similarity", "random", "pumer"))


def test_similarity_keeps_what_is_nearest_to_the_question(
    pipeline: Pipeline, tokens: VisualTokens, questions: Two
) -> None:
    kept, _ = prune(pipeline, "similarity", tokens, questions[0], 4)
    cosine = torch.cosine_similarity(tokens.meaning, questions[0].embedding[None])
    assert set(kept.positions.tolist()) == set(cosine.topk(4).indices.tolist())


def test_random_positions_depend_on_seed_and_question_not_on_order(
    tokens: VisualTokens, questions: Two
) -> None:
    one, other = questions
    score = pruners.RandomScorer(seed=0)
    first, _ = score(tokens, one)
    assert not torch.equal(first, score(tokens, other)[0])
    assert torch.equal(first, score(tokens, one)[0])
    assert not torch.equal(first, pruners.RandomScorer(seed=1)(tokens, one)[0])


def test_an_untrained_predictor_keeps_what_the_classifier_is_sure_of(
    pipeline: Pipeline, questions: Two
) -> None:
    evidence = torch.full((4, 5), 0.2)
    evidence[2] = torch.tensor([0.96, 0.01, 0.01, 0.01, 0.01])
    evidence[3] = torch.tensor([1.0, 0, 0, 0, 0])
    tokens = VisualTokens(torch.zeros(4, 3), evidence, torch.zeros(4, 12), evidence[0], 2)
    scores, _ = pruners.CertaintyScorer()(tokens, questions[0])
    assert scores.tolist() == pytest.approx([0, 0, 0.86, 1], abs=0.01)
    assert prune(pipeline, "dynamicvit", tokens, questions[0], 2)[0].positions.tolist() == [2, 3]


def test_a_trained_predictor_decides_where_there_is_one(
    pipeline: Pipeline, tokens: VisualTokens, questions: Two
) -> None:
    torch.manual_seed(3)
    head = KeepHead(KeepHeadConfig(width=12, hidden=16)).requires_grad_(False)
    trained = pipeline.with_components(keep_head=head)
    kept, record = prune(trained, "dynamicvit", tokens, questions[0], 9)
    assert set(kept.positions.tolist()) == set(head(tokens.meaning).topk(9).indices.tolist())
    assert record.flops == count_flops(lambda: head(tokens.meaning)) > 0
    plain, _ = prune(pipeline, "dynamicvit", tokens, questions[0], 9)
    assert not torch.equal(kept.positions, plain.positions)


def test_the_keep_head_sees_the_image_as_a_set() -> None:
    torch.manual_seed(4)
    head = KeepHead(KeepHeadConfig(width=6, hidden=8)).requires_grad_(False)
    visual, order = torch.randn(3, 9, 6), torch.randperm(9)
    torch.testing.assert_close(head(visual[:, order]), head(visual)[:, order])
    changed = visual.clone()
    changed[:, 0] *= -1
    # What else is in the image counts.
    assert not torch.allclose(head(changed)[:, 1:], head(visual)[:, 1:])


# Token merging


def merged(features: Tensor, count: int) -> KeptTokens:
    V = len(features)
    evidence = torch.rand(V, 5, generator=torch.Generator().manual_seed(V)).softmax(-1)
    tokens = VisualTokens(features, evidence, torch.eye(V), evidence[0], round(V**0.5))
    asked = Question("?", torch.zeros(V), (), torch.zeros(1, V))
    return merging.MergeTokens()(entering(tokens, asked, count), StageRecord("prune")).kept


def regions_of(kept: KeptTokens, config: RegionsConfig) -> tuple[Region, ...]:
    given = State("nowhere.png", "?").add(kept=kept)
    return FindRegions(config, ClusterProposer())(given, StageRecord("regions")).regions


@given(side=st.integers(1, 6), count=st.integers(1, 40), seed=st.integers(0, 99))
def test_merging_leaves_every_token_in_one_and_means_of_them(
    side: int, count: int, seed: int
) -> None:
    V = side * side
    features = torch.randn(V, 7, generator=torch.Generator().manual_seed(seed))
    kept = merged(features, count)
    assert kept.merged_into is not None
    assert len(kept.positions) == min(count, V)
    assert sorted(set(kept.merged_into.tolist())) == kept.positions.tolist()
    assert torch.equal(kept.merged_into[kept.positions], kept.positions)
    assert kept.saliency.sum() == pytest.approx(1)
    for position in kept.positions.tolist():
        members = kept.merged_into == position
        assert kept.saliency[position] == pytest.approx(members.sum() / V)
        torch.testing.assert_close(kept.tokens.features[position], features[members].mean(0))
        assert kept.tokens.concept_probs[position].sum() == pytest.approx(1, abs=1e-5)
        assert kept.tokens.meaning[position].norm() == pytest.approx(1, abs=1e-5)


def test_equal_tokens_are_merged_before_different_ones() -> None:
    kinds = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3])
    kept = merged(torch.eye(4)[kinds], 8)
    assert kept.merged_into is not None
    assert torch.equal(kinds[kept.merged_into], kinds)


def test_a_region_covers_all_that_was_merged_into_it() -> None:
    features = torch.randn(36, 7, generator=torch.Generator().manual_seed(0))
    kept = merged(features, 9)
    regions = regions_of(kept, RegionsConfig())
    assert sorted(member for region in regions for member in region.members) == list(range(36))
    whole = regions_of(kept, RegionsConfig(max_regions=1))
    assert whole[0].box == (0, 0, 1, 1)
    # One region of everything shows what the image shows on average.
    probs = dict(whole[0].concepts)
    evidence = torch.rand(36, 5, generator=torch.Generator().manual_seed(36)).softmax(-1).mean(0)
    assert [probs[c] for c in range(5)] == pytest.approx(evidence.tolist(), abs=1e-5)


def test_what_the_encoder_has_merged_stays_one() -> None:
    features = torch.eye(4)[[0, 1, 0, 2, 3, 0, 1, 1, 2]]
    tokens = VisualTokens(features, torch.ones(9, 1), torch.eye(9), torch.ones(1), 3)
    asked = Question("?", torch.zeros(9), (), torch.zeros(1, 9))
    stage, record = merging.MergeFurther(), StageRecord("prune")
    kept = stage(entering(tokens, asked, 6), record).kept
    assert kept.positions.tolist() == [0, 1, 3, 4], "four are left, which is fewer than allowed"
    assert kept.merged_into is not None
    assert kept.merged_into.tolist() == [0, 1, 0, 3, 4, 0, 1, 1, 3]
    assert record.flops == 0
    further = stage(entering(tokens, asked, 3), record).kept
    assert len(further.positions) == 3


def test_without_a_vit_nothing_can_be_merged_inside(pipeline: Pipeline) -> None:
    with pytest.raises(UserError, match="needs a ViT and pocket has none: use submission-7b"):
        systems.build(Variant("skip", "tome-in-encoder"), pipeline)


# Sampling


def sampled_one_by_one(features: Tensor, count: int) -> list[int]:
    """Adaptive token sampling in plain numbers."""
    rows = features.double().tolist()
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    logits = [sum(a * b for a, b in zip(row, mean, strict=True)) for row in rows]
    exps = [math.exp(logit / math.sqrt(len(mean))) for logit in logits]
    mattering = [e * math.hypot(*row) for e, row in zip(exps, rows, strict=True)]
    total, found = sum(mattering), set()
    for step in range(count):
        target, passed = (2 * step + 1) / (2 * count), 0.0
        for position, value in enumerate(mattering):
            passed += value / total
            if passed >= target:
                found.add(position)
                break
    return sorted(found)


@given(side=st.integers(2, 6), count=st.integers(1, 35), seed=st.integers(0, 99))
def test_samples_are_those_of_a_plain_implementation(side: int, count: int, seed: int) -> None:
    V = side * side
    features = torch.randn(V, 7, generator=torch.Generator().manual_seed(seed))
    tokens = VisualTokens(features, torch.ones(V, 1), torch.eye(V), torch.ones(1), side)
    asked = Question("?", torch.zeros(V), (), torch.zeros(1, V))
    record = StageRecord("prune")
    kept = pruners.SampleTokens()(entering(tokens, asked, count), record).kept
    expected = list(range(V)) if count >= V else sampled_one_by_one(features, count)
    assert kept.positions.tolist() == expected
    assert kept.saliency.sum() == pytest.approx(1)


def test_fewer_are_sampled_where_few_matter() -> None:
    assert pruners.sampled(torch.full((16,), 1 / 16), 8).tolist() == list(range(0, 16, 2))
    peaked = torch.tensor([0.01, 0.9, 0.01, 0.08])
    assert pruners.sampled(peaked, 3).tolist() == [1]
    assert pruners.sampled(peaked, 100).tolist() == [0, 1, 2, 3]


# Pruning and merging


def pruned_and_merged_one_by_one(tokens: VisualTokens, asked: Question, count: int) -> list[int]:
    """The place of each token after text-informed pruning and merging, or -1, in plain loops."""
    V, width = tokens.meaning.shape
    attention = torch.zeros(V)
    for word in asked.states:
        logits = torch.stack([word @ token for token in tokens.meaning]) / math.sqrt(width)
        attention += logits.exp() / logits.exp().sum()
    by_attention = sorted(range(V), key=lambda i: (-float(attention[i]), i))
    groups = {i: [i] for i in sorted(by_attention[: math.ceil(math.sqrt(V * count))])}
    while len(groups) > count:
        places = sorted(groups)
        means = {i: tokens.features[groups[i]].mean(0) for i in places}
        pairs = []
        for source in places[::2]:
            cosines = [
                float(torch.cosine_similarity(means[source], means[t], 0)) for t in places[1::2]
            ]
            best = max(range(len(cosines)), key=lambda n: (cosines[n], -n))
            pairs.append((cosines[best], source, places[1::2][best]))
        pairs.sort(key=lambda pair: -pair[0])
        for _, source, target in pairs[: len(groups) - count]:
            groups[target] = sorted([*groups[target], *groups.pop(source)])
    where = {member: place for place, members in groups.items() for member in members}
    return [where.get(i, -1) for i in range(V)]


@pytest.mark.parametrize("count", [1, 4, 9, 20, 35])
def test_pruning_and_merging_are_those_of_a_plain_implementation(
    pipeline: Pipeline, tokens: VisualTokens, questions: Two, count: int
) -> None:
    for asked in questions:
        kept, _ = prune(pipeline, "pumer", tokens, asked, count)
        expected = pruned_and_merged_one_by_one(tokens, asked, count)
        assert kept.merged_into is not None
        assert kept.merged_into.tolist() == expected
        assert kept.positions.tolist() == sorted(set(expected) - {DROPPED})
        assert expected.count(DROPPED) == 36 - math.ceil(math.sqrt(36 * count))
        for position in kept.positions.tolist():
            members = kept.merged_into == position
            torch.testing.assert_close(
                kept.tokens.concept_probs[position], tokens.concept_probs[members].mean(0)
            )


def test_what_the_question_dropped_is_in_no_region(
    pipeline: Pipeline, tokens: VisualTokens, questions: Two
) -> None:
    kept, _ = prune(pipeline, "pumer", tokens, questions[0], 9)
    assert kept.merged_into is not None
    members = [m for region in regions_of(kept, RegionsConfig()) for m in region.members]
    assert sorted(members) == (kept.merged_into != DROPPED).nonzero()[:, 0].tolist()
    assert len(members) == 18


# The systems


def test_a_smaller_image_costs_less_to_encode(ask: Ask, pipeline: Pipeline) -> None:
    small, skip = ask(Variant("skip", "downsample")).trace, ask("skip").trace
    assert skip["prune"].kept == 29
    assert small["encode"].kept == small["prune"].kept == 25  # the largest square below
    assert small["prune"].dropped == 0
    assert small["look"].flops == 0 < skip["look"].flops

    def scales(fraction: float) -> tuple[int, ...]:
        return systems.build(Variant("skip", "downsample", fraction), pipeline).config.encode.scales

    assert scales(0.11) == (160,)
    assert scales(0.25) == (256,)
    assert scales(0.6) == (256, 384)
    assert scales(1.0) == pipeline.config.encode.scales
    assert scales(0.001) == (32,)


def test_the_smallest_image_can_be_encoded(ask: Ask) -> None:
    answer = ask(Variant("skip", "downsample", 0.001))
    assert answer.trace["prune"].kept == 1
    assert len(answer.state.regions) == 1


@pytest.mark.parametrize("own_view", [True, False])
def test_a_drafter_of_the_full_grid_is_left_out_of_a_smaller_one(
    pipeline: Pipeline, own_view: bool
) -> None:
    """One with a low-resolution view of its own, as pocket's, reads it as before."""
    torch.manual_seed(0)
    config = DrafterConfig(64, 1_280, 384, ("yes", "no"), width=32, layers=1, ffn=64)
    drafter, head = Drafter(config).eval(), KeepHead(KeepHeadConfig(width=6, hidden=8))
    trained = pipeline.with_components(drafter=drafter, keep_head=head)
    widths = pipeline.backbone.widths
    assert widths.low_res != widths.tokens
    if not own_view:
        on_grid = SimpleNamespace(widths=dataclasses.replace(widths, low_res=widths.tokens))
        trained = trained.with_backbone(cast(Any, on_grid))
    found = systems.build(Variant("skip", "downsample"), trained).components
    assert found.drafter is (drafter if own_view else None)
    assert found.keep_head is head


def test_merging_leaves_what_was_seen_of_the_whole_image(
    pipeline: Pipeline, tokens: VisualTokens, questions: Two
) -> None:
    seen = dataclasses.replace(
        tokens,
        drafter_features=torch.ones(4, 10),
        words=SeenWords(("dog",), torch.ones(1), torch.ones(1, 12)),
    )
    joined = prune(pipeline, "tome", seen, questions[0], 9)[0].tokens
    assert joined.words is seen.words
    assert joined.drafter_features is seen.drafter_features
    assert joined.overview is seen.overview


def test_merged_tokens_take_the_full_path(ask: Ask) -> None:
    merged, skip = ask(Variant("skip", "tome")), ask("skip").trace
    trace = merged.trace
    assert trace["prune"].kept == skip["prune"].kept
    assert trace["prune"].flops > skip["prune"].flops
    assert sum(len(region.members) for region in merged.state.regions) == 256
    assert trace["look"].flops == skip["look"].flops
