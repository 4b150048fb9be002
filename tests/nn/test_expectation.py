"""What a question lets one expect: by chance at first, never nothing, never of another shape."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from skipqa.nn.expectation import Expectation, ExpectationConfig, flops


def test_a_question_that_says_nothing_changes_nothing() -> None:
    module = Expectation(ExpectationConfig(width=6, hidden=3))
    factors = module.factors(torch.zeros(6), torch.randn(9, 6))
    torch.testing.assert_close(factors, torch.ones(9))


def test_anything_stays_possible() -> None:
    config = ExpectationConfig(width=6, hidden=3, floor=0.04, trust=0.5)
    module = Expectation(config)
    with torch.no_grad():
        module.of_question.weight.mul_(1e3)
        module.of_concept.weight.mul_(1e3)
    factors = module.factors(torch.randn(2, 6), torch.randn(9, 6))
    assert factors.shape == (2, 9)
    assert (factors >= 0.04**0.5 - 1e-6).all()
    assert (factors.amax(-1) > 1).all()


def test_flops_are_those_of_its_matrices() -> None:
    config = ExpectationConfig(width=6, hidden=3)
    module = Expectation(config)
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(1, 6), torch.randn(9, 6))
    assert counter.get_total_flops() == flops(config, 9)
