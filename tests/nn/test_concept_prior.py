"""What a question lets one expect: by chance at first, never nothing, never of another shape."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from skipqa.nn.concept_prior import ConceptPriorConfig, ConceptPriorHead, flops


def test_a_question_that_says_nothing_changes_nothing() -> None:
    module = ConceptPriorHead(ConceptPriorConfig(width=6, hidden=3))
    expected = module.prior(torch.zeros(6), torch.randn(9, 6))
    torch.testing.assert_close(expected.weights, torch.ones(9))
    assert abs(expected.information) < 1e-6


def test_anything_stays_possible() -> None:
    config = ConceptPriorConfig(width=6, hidden=3, floor=0.04, trust=0.5)
    module = ConceptPriorHead(config)
    with torch.no_grad():
        module.of_question.weight.mul_(1e3)
        module.of_concept.weight.mul_(1e3)
    expected = module.prior(torch.randn(6), torch.randn(9, 6))
    assert expected.weights.shape == (9,)
    assert (expected.weights >= 0.04**0.5 - 1e-6).all()
    assert expected.weights.max() > 1
    assert 0 < expected.information <= torch.tensor(9.0).log() + 1e-6


def test_flops_are_those_of_its_matrices() -> None:
    config = ConceptPriorConfig(width=6, hidden=3)
    module = ConceptPriorHead(config)
    question, concepts = torch.randn(6), torch.randn(9, 6)
    first = module.prior(question, concepts)
    with FlopCounterMode(display=False) as counter:
        again = module.prior(question, concepts)
    assert counter.get_total_flops() == flops(config, 9)
    torch.testing.assert_close(again.factors, first.factors)
    other = module.prior(question, concepts + 1)
    assert not torch.equal(other.factors, first.factors)
    wanted = module(question, concepts).softmax(-1) * 9
    prob = (first.factors ** (1 / config.trust) - config.floor) / (1 - config.floor)
    torch.testing.assert_close(prob, wanted.detach())
