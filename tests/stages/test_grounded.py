"""prune with a grounding, and regions that count by their saliency."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import WIDTH, concepts, naming, question, run, state, visual_tokens

from skipqa.components import Components
from skipqa.config import Config, PruneConfig
from skipqa.errors import UserError
from skipqa.nn.grounding import Grounding, GroundingConfig
from skipqa.stages import prune
from skipqa.stages.prune import ConceptScorer, GroundedScorer, Prune
from skipqa.stages.retrieve import by_saliency
from skipqa.stages.stage import Parts
from skipqa.types import Budget, Hit, Region

KINDS = concepts(("espresso", ("coffee", "drink")), ("beagle", ("dog",)), ("mug", ("cup",)))
RULE = ConceptScorer(PruneConfig(), naming(KINDS))
FEATURES = 6  # of the synthetic tokens


def grounding(seed: int, num_concepts: int = len(KINDS), *, trained: bool = False) -> Grounding:
    torch.manual_seed(seed)
    model = Grounding(GroundingConfig(FEATURES, num_concepts, WIDTH, width=8, heads=2, hidden=4))
    for parameter in model.parameters() if trained else ():
        torch.nn.init.normal_(parameter)
    return model.eval()


@given(grid=st.integers(1, 6), count=st.integers(1, 40), seed=st.integers(0, 100))
@settings(max_examples=40)
def test_untrained_it_keeps_what_the_rule_keeps(grid: int, count: int, seed: int) -> None:
    tokens = visual_tokens(grid, len(KINDS), seed)
    entering = state(tokens=tokens, question=question(), budget=Budget(count, 1))
    by_rule, spent = run(Prune(RULE), entering)
    grounded, record = run(Prune(GroundedScorer(grounding(seed), RULE)), entering)
    assert grounded.kept.positions.tolist() == by_rule.kept.positions.tolist()
    assert record.flops > spent.flops


@given(grid=st.integers(1, 6), seed=st.integers(0, 100))
@settings(max_examples=40)
def test_its_saliency_is_a_probability(grid: int, seed: int) -> None:
    scorer = GroundedScorer(grounding(seed, trained=True), RULE)
    saliency, _ = scorer(visual_tokens(grid, len(KINDS), seed), question())
    assert saliency.shape == (grid * grid,)
    assert bool(((saliency >= 0) & (saliency <= 1)).all())


def test_one_of_another_vocabulary_is_refused() -> None:
    parts = Parts(
        naming(KINDS),
        None,  # type: ignore[arg-type]
        Config(),
        Components(grounding=grounding(0, num_concepts=9)),
    )
    with pytest.raises(UserError, match="9 concepts, this backbone has 3"):
        prune.build(parts)


def region(saliency: float) -> Region:
    return Region((0.0, 0.0, 1.0, 1.0), (0,), (), saliency)


saliencies = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5)


@given(saliencies=saliencies, sharpness=st.floats(0.0, 8.0), score=st.floats(0.1, 50.0))
def test_regions_count_by_saliency(saliencies: list[float], sharpness: float, score: float) -> None:
    regions = [region(one) for one in saliencies]
    found = [[[Hit(7, score)] for _ in regions]]  # one index, the same hit for every region
    [sharpened] = by_saliency(found, regions, sharpness)
    scores = [hits[0].score for hits in sharpened]
    assert [hits[0].row for hits in sharpened] == [7] * len(regions)
    if sharpness == 0:
        assert scores == [score] * len(regions)
    elif max(saliencies) > 1e-6:
        best = saliencies.index(max(saliencies))
        assert scores[best] == pytest.approx(score)  # the most salient region's are as they were
        order = sorted(range(len(regions)), key=lambda r: saliencies[r])
        assert all(scores[a] <= scores[b] + 1e-9 for a, b in pairwise(order))
