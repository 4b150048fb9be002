"""The stages with trained components: what holds without them holds with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import WIDTH, concepts, kept_tokens, question, verified, visual_tokens

from skipqa.config import DraftConfig, FuseConfig, PruneConfig
from skipqa.nn.drafter import Drafter, DrafterConfig
from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.nn.saliency import SaliencyConfig, build_saliency
from skipqa.stages.draft import draft
from skipqa.stages.fuse import fuse
from skipqa.stages.prune import prune
from skipqa.trace import StageRecord
from skipqa.types import Budget, KeptTokens, Question, VisualTokens

KINDS = concepts(("espresso", ("coffee", "drink")), ("beagle", ("dog",)), ("mug", ("cup",)))
GRID = 5
VARIANTS = pytest.mark.parametrize("variant", ["A", "B"])
Variant = Literal["A", "B"]
seeds = st.integers(0, 200)


def pruned(
    variant: Variant, grid: int, count: int, seed: int, scale: float = 1.0
) -> tuple[KeptTokens, StageRecord]:
    torch.manual_seed(seed)
    scorer = build_saliency(SaliencyConfig(WIDTH, variant, hidden=8))
    for parameter in scorer.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    tokens, record = visual_tokens(grid, len(KINDS), seed), StageRecord("prune")
    kept = prune(tokens, question(), Budget(count, 1), KINDS, PruneConfig(), record, scorer)
    return kept, record


@VARIANTS
@given(grid=st.integers(1, 6), count=st.integers(1, 40), seed=seeds)
def test_pruning_keeps_the_most_salient_and_accounts_for_the_rest(
    variant: Variant, grid: int, count: int, seed: int
) -> None:
    kept, record = pruned(variant, grid, count, seed)
    assert len(kept.positions) == record.kept == min(count, grid * grid)
    assert record.kept + (record.dropped or 0) == grid * grid
    dropped = torch.ones(grid * grid, dtype=torch.bool)
    dropped[kept.positions] = False
    if dropped.any():
        assert kept.saliency[kept.positions].min() >= kept.saliency[dropped].max()
    assert ((kept.saliency >= 0) & (kept.saliency <= 1)).all()


@VARIANTS
@given(grid=st.integers(1, 6), seed=seeds)
def test_retention_one_is_the_identity(variant: Variant, grid: int, seed: int) -> None:
    kept, record = pruned(variant, grid, grid * grid, seed)
    assert kept.positions.tolist() == list(range(grid * grid))
    assert torch.equal(kept.tokens.meaning[kept.positions], kept.tokens.meaning)
    assert record.dropped == 0


@VARIANTS
@given(
    positions=st.sets(st.integers(0, GRID * GRID - 1), min_size=1, max_size=12).map(sorted),
    lengths=st.lists(st.integers(1, 6), max_size=5),
    seed=seeds,
)
def test_fusing_accounts_for_every_edge_and_leaves_idle_tokens_alone(
    variant: Variant, positions: list[int], lengths: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    layer = BipartiteFusion(FusionConfig(WIDTH, WIDTH, 2, variant, edge_width=8, beta=0.3))
    torch.nn.init.normal_(layer.out.weight)
    kept, passages = kept_tokens(GRID, positions, seed), verified(lengths, seed)
    record = StageRecord("fuse")
    fused = fuse(kept, question(), passages, FuseConfig(), record, layer)
    assert (record.kept, record.dropped) == (int(fused.edges.sum()), int((~fused.edges).sum()))
    assert fused.edges.shape == (len(positions), len(lengths))
    before = kept.tokens.meaning[kept.positions]
    idle = ~fused.edges.any(1)
    assert torch.equal(fused.tokens[idle], before[idle])
    assert all((mass > 0) == bool(fused.edges[:, j].any()) for j, mass in enumerate(fused.mass))
    assert not lengths or record.flops > 0
    again = fuse(kept, question(), passages, FuseConfig(), StageRecord("fuse"), layer)
    assert torch.equal(again.tokens, fused.tokens)


@pytest.mark.parametrize(
    ("text", "confidence", "answered"),
    [
        ("What colour is it?", 0.85, True),
        ("What colour is it?", 0.80, False),
        ("How many cups are there?", 0.85, False),  # overconfident where objects overlap
        ("How many cups are there?", 0.95, True),
    ],
)
def test_counting_needs_more_confidence(text: str, confidence: float, answered: bool) -> None:
    config = DrafterConfig(4, 6, WIDTH, ("red", "two"), width=8, layers=1, heads=2, ffn=8)
    drafter = Drafter(config).eval()
    with torch.no_grad():
        drafter.to_answers.weight.zero_()
        odds = torch.tensor((confidence, 1 - confidence)).log()
        drafter.to_answers.bias.copy_(odds)
    record = StageRecord("draft")
    found = draft(question(text), visual_tokens(2, 3, 0), KINDS, DraftConfig(), record, drafter)
    assert found.accepted == answered
    assert record.result.answer == "red"
    assert record.result.confidence == pytest.approx(confidence, abs=1e-6)
    assert record.flops > 0


def drafter_of(answers: int, seed: int, temperature: float) -> Drafter:
    torch.manual_seed(seed)
    names = tuple(f"answer {i}" for i in range(answers))
    drafter = Drafter(DrafterConfig(4, 6, WIDTH, names, width=8, layers=1, heads=2, ffn=8)).eval()
    torch.nn.init.normal_(drafter.to_answers.bias, std=3.0)
    drafter.temperature.fill_(temperature)
    return drafter.requires_grad_(False)


@given(
    answers=st.integers(1, 9),
    candidates=st.integers(1, 12),
    temperature=st.floats(0.1, 10),
    threshold=st.floats(0, 1),
    seed=seeds,
)
@settings(max_examples=40)
def test_candidates_are_the_best_answers_with_calibrated_log_probabilities(
    answers: int, candidates: int, temperature: float, threshold: float, seed: int
) -> None:
    drafter, tokens = drafter_of(answers, seed, temperature), visual_tokens(2, 3, seed)
    asked, record = question("What colour is it?"), StageRecord("draft")
    config = DraftConfig(threshold=threshold, candidates=candidates)
    found = draft(asked, tokens, KINDS, config, record, drafter)
    logits = drafter(tokens.features[None], asked.states[None])[0]
    probs = (logits.double() / temperature).softmax(-1)
    wanted = probs.log().sort(descending=True)
    assert len(found.candidates) == min(candidates, answers)
    values = [value for _, value in found.candidates]
    assert values == pytest.approx(wanted.values[: len(values)].tolist(), rel=1e-4, abs=1e-4)
    assert values == sorted(values, reverse=True)
    chosen = [drafter.config.answers.index(name) for name, _ in found.candidates]
    assert probs[chosen].log().tolist() == pytest.approx(values, rel=1e-4, abs=1e-4)
    assert len(set(chosen)) == len(chosen)
    assert found.answer == found.candidates[0][0]
    assert found.confidence == pytest.approx(float(probs.max()), abs=1e-5)
    assert found.vocabulary == drafter.config.answers
    assert found.accepted == (found.confidence > threshold)
    assert (record.kept, record.dropped) == (int(found.accepted), int(not found.accepted))


@given(temperature=st.floats(0.001, 10), seed=seeds)
@settings(max_examples=20)
def test_threshold_one_closes_the_fast_path(temperature: float, seed: int) -> None:
    """However sure: one answer alone has all of the probability."""
    config = DraftConfig(threshold=1.0, counting_threshold=1.0)
    for answers, text in ((1, "What colour is it?"), (3, "What colour is it?"), (3, "How many?")):
        drafter = drafter_of(answers, seed, temperature)
        tokens = visual_tokens(2, 3, seed)
        assert not draft(question(text), tokens, KINDS, config, StageRecord(""), drafter).accepted


def test_the_drafter_looks_with_its_own_eyes() -> None:
    """At the glance and the states that are meant for it, where there are any."""
    drafter, tokens, asked = drafter_of(5, 0, 1.0), visual_tokens(2, 3, 0), question()
    coarse, own = torch.randn(4, 6), torch.randn(3, WIDTH)

    def run(tokens: VisualTokens, asked: Question) -> tuple[tuple[tuple[str, float], ...], int]:
        record = StageRecord("draft")
        found = draft(asked, tokens, KINDS, DraftConfig(), record, drafter)
        return found.candidates, record.flops

    given_to_it = run(replace(tokens, low_res=coarse), replace(asked, drafter_states=own))
    assert given_to_it == run(replace(tokens, features=coarse), replace(asked, states=own))
    assert given_to_it != run(tokens, asked)
    assert given_to_it[1] < run(tokens, asked)[1]  # three words, not five


def test_the_empty_answer_is_none() -> None:
    config = DrafterConfig(4, 6, WIDTH, ("", "red", "two"), width=8, layers=1, heads=2, ffn=8)
    drafter = Drafter(config).eval().requires_grad_(False)
    drafter.to_answers.weight.zero_()
    drafter.to_answers.bias.copy_(torch.tensor([5.0, 1.0, 0.0]))
    for count, wanted in ((1, ["red"]), (2, ["red", "two"]), (3, ["red", "two"])):
        settings = DraftConfig(candidates=count)
        tokens, record = visual_tokens(2, 3, 0), StageRecord("draft")
        found = draft(question("What is it?"), tokens, KINDS, settings, record, drafter)
        assert [answer for answer, _ in found.candidates] == wanted
        assert found.answer == "red"
        assert found.confidence < 0.1
        assert not found.accepted
