"""The stages with trained components: what holds without them holds with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import WIDTH, kept_tokens, question, run, state, verified, visual_tokens

from skipqa.config import DraftConfig
from skipqa.nn.drafter import ABSTAIN, Drafter, DrafterConfig
from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.nn.saliency import SaliencyConfig, build_saliency
from skipqa.stages.draft import DraftAnswer, TrainedDrafter
from skipqa.stages.fuse import Fuse, TrainedFuser
from skipqa.stages.prune import Prune, SaliencyScorer
from skipqa.trace import StageRecord
from skipqa.types import Budget, Draft, KeptTokens, Question, VisualTokens

NUM_CONCEPTS, GRID = 3, 5
DEFAULT = DraftConfig()
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
    tokens = visual_tokens(grid, NUM_CONCEPTS, seed)
    entering = state(tokens=tokens, question=question(), budget=Budget(count, 1))
    leaving, record = run(Prune(SaliencyScorer(scorer)), entering)
    return leaving.kept, record


def drafted(
    drafter: Drafter,
    low_res: VisualTokens,
    asked: Question,
    config: DraftConfig = DEFAULT,
) -> tuple[Draft, StageRecord]:
    stage = DraftAnswer(config, TrainedDrafter(drafter, config.candidates))
    leaving, record = run(stage, state(question=asked, low_res=low_res))
    return leaving.draft, record


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
    entering = state(question=question(), kept=kept, verified=passages)
    leaving, record = run(Fuse(TrainedFuser(layer)), entering)
    fused = leaving.fused
    assert (record.kept, record.dropped) == (int(fused.edges.sum()), int((~fused.edges).sum()))
    assert fused.edges.shape == (len(positions), len(lengths))
    before = kept.tokens.meaning[kept.positions]
    idle = ~fused.edges.any(1)
    assert torch.equal(fused.tokens[idle], before[idle])
    assert all((mass > 0) == bool(fused.edges[:, j].any()) for j, mass in enumerate(fused.mass))
    assert not lengths or record.flops > 0
    again, _ = run(Fuse(TrainedFuser(layer)), entering)
    assert torch.equal(again.fused.tokens, fused.tokens)


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
    found, record = drafted(drafter, visual_tokens(2, 3, 0), question(text))
    assert found.accepted == answered
    assert found.answer == "red"
    assert found.confidence == pytest.approx(confidence, abs=1e-6)
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
    asked = question("What colour is it?")
    config = DraftConfig(threshold=threshold, candidates=candidates)
    found, record = drafted(drafter, tokens, asked, config)
    logits = drafter(tokens.features[None], asked.states[None])[0]
    probs = (logits.double() / temperature).softmax(-1)
    best = probs.log().sort(descending=True)
    assert len(found.candidates) == min(candidates, answers)
    values = [value for _, value in found.candidates]
    assert values == pytest.approx(best.values[: len(values)].tolist(), rel=1e-4, abs=1e-4)
    assert values == sorted(values, reverse=True)
    chosen = [drafter.config.answers.index(name) for name, _ in found.candidates]
    assert probs[chosen].log().tolist() == pytest.approx(values, rel=1e-4, abs=1e-4)
    assert len(set(chosen)) == len(chosen)
    assert found.answer == found.candidates[0][0]
    assert found.confidence == pytest.approx(float(probs.max()), abs=1e-5)
    assert tuple(found.vocabulary) == drafter.config.answers
    assert found.accepted == (found.confidence > threshold)
    assert (record.kept, record.dropped) == (int(found.accepted), int(not found.accepted))


@given(temperature=st.floats(0.001, 10), seed=seeds)
@settings(max_examples=20)
def test_threshold_one_closes_the_fast_path(temperature: float, seed: int) -> None:
    """However sure: one answer alone has all of the probability."""
    config = DraftConfig(threshold=1.0, counting_threshold=1.0)
    for answers, text in ((1, "What colour is it?"), (3, "What colour is it?"), (3, "How many?")):
        drafter = drafter_of(answers, seed, temperature)
        found, _ = drafted(drafter, visual_tokens(2, 3, seed), question(text), config)
        assert not found.accepted


def test_the_drafter_reads_what_is_meant_for_it() -> None:
    """The low-resolution features and the question states of its own, where there are any."""
    drafter, tokens, asked = drafter_of(5, 0, 1.0), visual_tokens(2, 3, 0), question()
    coarse, own = torch.randn(4, 6), torch.randn(3, WIDTH)

    def read(tokens: VisualTokens, asked: Question) -> tuple[tuple[tuple[str, float], ...], int]:
        found, record = drafted(drafter, tokens, asked)
        return found.candidates, record.flops

    given_to_it = read(replace(tokens, drafter_features=coarse), replace(asked, drafter_states=own))
    assert given_to_it == read(replace(tokens, features=coarse), replace(asked, states=own))
    assert given_to_it != read(tokens, asked)
    assert given_to_it[1] < read(tokens, asked)[1]  # three words, not five


@pytest.mark.parametrize(
    ("count", "answers"), [(1, ["red"]), (2, ["red", "two"]), (3, ["red", "two"])]
)
def test_to_abstain_is_a_probability_and_no_answer(count: int, answers: list[str]) -> None:
    config = DrafterConfig(4, 6, WIDTH, (ABSTAIN, "red", "two"), width=8, layers=1, heads=2, ffn=8)
    drafter = Drafter(config).eval().requires_grad_(False)
    drafter.to_answers.weight.zero_()
    logits = torch.tensor([5.0, 1.0, 0.0])
    drafter.to_answers.bias.copy_(logits)
    settings = DraftConfig(candidates=count)
    found, _ = drafted(drafter, visual_tokens(2, 3, 0), question("What is it?"), settings)
    assert [answer for answer, _ in found.candidates] == answers
    assert found.answer == "red"
    assert found.confidence < 0.1
    assert found.abstain_prob == pytest.approx(float(logits.softmax(0)[0]))
    assert found.vocabulary == {ABSTAIN: 0.0, "red": 0.0, "two": 0.0}  # not counted
    counted = Drafter(replace(config, counted_answers=True)).eval()
    counted.log_frequency.copy_(torch.tensor([-3.0, -1.0, -2.0]))
    found, _ = drafted(counted, visual_tokens(2, 3, 0), question("What is it?"))
    assert [found.log_frequency(answer) for answer in ("red", "two", "blue")] == [-1.0, -2.0, -3.0]
    assert not found.accepted
