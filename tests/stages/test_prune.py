"""prune keeps exactly the most salient tokens that the budget allows."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic import concepts, naming, question, run, state, visual_tokens

from skipqa.config import PruneConfig
from skipqa.stages.prune import ConceptScorer, Prune, concept_relevance, top_positions
from skipqa.state import State
from skipqa.types import Budget, ConceptPrior, Question, VisualTokens

KINDS = concepts(("espresso", ("coffee", "drink")), ("beagle", ("dog",)), ("mug", ("cup",)))
STAGE = Prune(ConceptScorer(PruneConfig(), naming(KINDS)))


def entering(tokens: VisualTokens, asked: Question, allowed: int) -> State:
    return state(tokens=tokens, question=asked, budget=Budget(allowed, 1))


@given(
    saliency=st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    count=st.integers(1, 50),
)
def test_top_positions_are_ascending_and_hold_the_highest(saliency: list[int], count: int) -> None:
    values = torch.tensor(saliency, dtype=torch.float32)
    positions = top_positions(values, count).tolist()
    assert len(positions) == min(count, len(saliency))
    assert positions == sorted(set(positions))
    # By value, then by place: ties go to the first, which also says that dropped <= kept.
    expected = sorted(range(len(saliency)), key=lambda i: (-saliency[i], i))[:count]
    assert positions == sorted(expected)


@given(grid=st.integers(1, 6), allowed=st.integers(1, 50), seed=st.integers(0, 100))
def test_budget_is_met_exactly_and_accounted_for(grid: int, allowed: int, seed: int) -> None:
    tokens = visual_tokens(grid, len(KINDS), seed)
    leaving, record = run(STAGE, entering(tokens, question(), allowed))
    kept = leaving.kept
    assert len(kept.positions) == min(allowed, grid * grid)
    assert record.kept == len(kept.positions)
    assert record.kept + (record.dropped or 0) == grid * grid
    assert kept.saliency.shape == (grid * grid,)
    dropped = torch.ones(grid * grid, dtype=torch.bool)
    dropped[kept.positions] = False
    if dropped.any():
        assert kept.saliency[kept.positions].min() >= kept.saliency[dropped].max()


@given(grid=st.integers(1, 6), seed=st.integers(0, 100))
def test_keeping_everything_is_the_identity(grid: int, seed: int) -> None:
    tokens = visual_tokens(grid, len(KINDS), seed)
    kept = run(STAGE, entering(tokens, question(), len(tokens)))[0].kept
    assert kept.positions.tolist() == list(range(grid * grid))
    assert kept.tokens is tokens


def test_naming_a_kind_counts_for_its_concepts() -> None:
    plain = concept_relevance(question("…", seed=1), KINDS)
    for words, lifted in ((("drinks",), [1, 0, 0]), (("dogs",), [0, 1, 0]), (("mug",), [0, 0, 1])):
        named = concept_relevance(question("…", *words, seed=1), KINDS)
        torch.testing.assert_close(named - plain, torch.tensor(lifted, dtype=torch.float32))
    assert (plain >= 0).all()
    assert (plain <= 1 + 1e-6).all()


@given(concept=st.integers(0, len(KINDS) - 1), seed=st.integers(0, 100))
def test_what_the_prior_says_the_question_is_about_is_kept(concept: int, seed: int) -> None:
    tokens, plain = visual_tokens(4, len(KINDS), seed), question("…", seed=seed)
    factors = torch.full((len(KINDS),), 0.2)
    factors[concept] = 5.0
    informed = replace(plain, concept_prior=ConceptPrior(factors, information=1.0))
    without, kept = (
        run(STAGE, entering(tokens, asked, 1))[0].kept.saliency for asked in (plain, informed)
    )
    gained = tokens.concept_probs[:, concept] + 0.04 * (1 - tokens.concept_probs[:, concept])
    torch.testing.assert_close(kept - without, gained)
