"""The span of a question: a run of tokens, never the first or the last."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from skipqa.nn.span import SpanConfig, SpanHead, best_run, flops


def test_the_run_with_the_largest_sum() -> None:
    assert best_run([9.0, -1.0, 2.0, -0.5, 1.0, -3.0, 1.5, 9.0]) == (2, 5)
    assert best_run([9.0, -1.0, -2.0, 9.0]) is None
    assert best_run([1.0, 1.0]) is None


@given(st.lists(st.floats(-5, 5, width=16), min_size=2, max_size=9))
def test_no_other_run_has_more(logits: list[float]) -> None:
    runs = [(i, j) for i in range(1, len(logits) - 1) for j in range(i + 1, len(logits))]
    most = max((sum(logits[i:j]) for i, j in runs), default=0.0)
    found = best_run(logits)
    if found is None:
        assert most <= 1e-6
    else:
        assert abs(sum(logits[slice(*found)]) - most) < 1e-6
        assert 1 <= found[0] < found[1] <= len(logits) - 1


def test_flops_are_those_of_its_matrix() -> None:
    head = SpanHead(SpanConfig(width=6))
    with FlopCounterMode(display=False) as counter:
        head.find(torch.randn(5, 6))
    assert counter.get_total_flops() == flops(head.config, 5)
