"""The signals: always as many, always small, and 0 for a draft that is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic import question, visual_tokens

from skipqa.stages.budget_signals import NUM_SIGNALS, OF_DRAFT, UNKNOWN_DRAFT, signals
from skipqa.types import ConceptPrior, Draft


@given(
    confidence=st.floats(0, 1),
    log_probs=st.lists(st.floats(-100, 0), max_size=4).map(lambda some: sorted(some, reverse=True)),
    information=st.floats(0, 1_000),
    seed=st.integers(0, 100),
)
def test_they_lie_between_0_and_1(
    confidence: float, log_probs: list[float], information: float, seed: int
) -> None:
    candidates = tuple((str(n), value) for n, value in enumerate(log_probs))
    draft = Draft("0", confidence, "", candidates, abstain_prob=1 - confidence)
    prior = ConceptPrior(torch.rand(3, generator=torch.Generator().manual_seed(seed)), information)
    asked = replace(question(), concept_prior=prior)
    found = signals(asked, visual_tokens(4, 3, seed), draft)
    assert found.shape == (NUM_SIGNALS,)
    assert ((found >= 0) & (found <= 1)).all()


def test_a_draft_that_is_not_known_says_nothing() -> None:
    tokens = visual_tokens(4, 3, seed=0)
    unknown = signals(question(), tokens, UNKNOWN_DRAFT)
    assert not unknown[:OF_DRAFT].any()
    said = Draft("a", 0.9, "", (("a", -0.1), ("b", -3.0)), abstain_prob=0.05)
    found = signals(question(), tokens, said)
    assert found[:OF_DRAFT].tolist() == pytest.approx([0.9, 0.05, 1 - 0.1 / 8, 2.9 / 8])
    assert torch.equal(found[OF_DRAFT:], unknown[OF_DRAFT:])


def test_they_say_how_sure_the_image_is_of_what_is_asked_about() -> None:
    tokens = visual_tokens(4, 3, seed=0)
    tokens = replace(tokens, overview=torch.tensor([0.5, 0.4, 0.1]))
    plain = signals(question(), tokens, UNKNOWN_DRAFT)
    about = ConceptPrior(torch.tensor([0.0, 1.0, 1.0]), 2.0)
    asked = replace(question(), concept_prior=about, span=(0, 4))
    found = signals(asked, tokens, UNKNOWN_DRAFT)
    assert float(plain[-1]) == pytest.approx(0.5)
    assert float(found[-1]) == pytest.approx(0.8)
    assert (float(plain[OF_DRAFT + 1]), float(found[OF_DRAFT + 1])) == (0.0, 1.0)
    assert float(found[OF_DRAFT]) == pytest.approx(2 / 8)
