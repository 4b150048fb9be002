"""The concept prior: uniform at first, never zero, and one weight per concept."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from skipqa.nn.concept_prior import ConceptPriorConfig, ConceptPriorHead, flops


def test_a_question_that_says_nothing_changes_nothing() -> None:
    module = ConceptPriorHead(ConceptPriorConfig(width=6, hidden=3))
    prior = module.prior(torch.zeros(6), module.of_concept(torch.randn(9, 6)))
    torch.testing.assert_close(prior.weights, torch.ones(9))
    assert abs(prior.information) < 1e-6


def test_anything_stays_possible() -> None:
    config = ConceptPriorConfig(width=6, hidden=3, floor=0.04, trust=0.5)
    module = ConceptPriorHead(config)
    with torch.no_grad():
        module.of_question.weight.mul_(1e3)
        module.of_concept.weight.mul_(1e3)
    prior = module.prior(torch.randn(6), module.of_concept(torch.randn(9, 6)))
    assert prior.weights.shape == (9,)
    assert (prior.weights >= 0.04**0.5 - 1e-6).all()
    assert prior.weights.max() > 1
    assert 0 < prior.information <= torch.tensor(9.0).log() + 1e-6


def test_flops_are_those_of_its_matrices() -> None:
    config = ConceptPriorConfig(width=6, hidden=3)
    module = ConceptPriorHead(config)
    question, concepts = torch.randn(6), torch.randn(9, 6)
    projected = module.of_concept(concepts)  # once for all questions
    with FlopCounterMode(display=False) as counter:
        prior = module.prior(question, projected)
    assert counter.get_total_flops() == flops(config, 9)
    other = module.prior(question, module.of_concept(concepts.flip(0)))
    torch.testing.assert_close(other.weights, prior.weights.flip(0))


def test_weights_are_the_softmax_over_chance_with_floor_and_exponent() -> None:
    config = ConceptPriorConfig(width=6, hidden=3)
    module = ConceptPriorHead(config).requires_grad_(False)
    question, concepts = torch.randn(6), torch.randn(9, 6)
    prior = module.prior(question, module.of_concept(concepts))
    probs = module(question, concepts).softmax(-1)
    ratio = (prior.weights ** (1 / config.trust) - config.floor) / (1 - config.floor)
    torch.testing.assert_close(ratio, probs * 9)
    divergence = (probs * (probs * 9).log()).sum()
    torch.testing.assert_close(prior.information, float(divergence), rtol=1e-4, atol=1e-6)
