"""A pointer finds the span that a passage names, or none, and learns to."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.nn import checkpoint
from skipqa.nn.bridge import LONGEST, NONE, BridgeConfig, BridgePointer, best_span, flops

WIDTH = 16
CONFIG = BridgeConfig(WIDTH, rank=4)


def pointer(seed: int = 0) -> BridgePointer:
    torch.manual_seed(seed)
    return BridgePointer(CONFIG)


def naive(log_prob: torch.Tensor) -> tuple[int, int] | None:
    first, last = log_prob.tolist()
    best, found = first[NONE] + last[NONE], None
    for i in range(1, len(first) - 1):
        for j in range(i, min(i + LONGEST, len(first) - 1)):
            if first[i] + last[j] > best:
                best, found = first[i] + last[j], (i, j + 1)
    return found


@given(st.integers(2, 20), st.integers(0, 500))
def test_the_best_span_is_that_of_all_pairs(length: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_prob = torch.randn(2, length, generator=generator, dtype=torch.float64).log_softmax(-1)
    span = best_span(log_prob)
    assert (None if span is None else span[:2]) == naive(log_prob)
    if span is not None:
        assert 1 <= span.first < span.end <= min(span.first + LONGEST, length - 1)
        assert 0 < span.prob <= 1


@given(st.integers(0, 50))
def test_padding_changes_nothing(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    asked = torch.randn(2, WIDTH, generator=generator)
    states = torch.randn(2, 7, WIDTH, generator=generator)
    there = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    model = pointer()
    log_prob = model(asked, states, there)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(2, 2))
    alone = model(asked[1:], states[1:, :4], torch.ones(1, 4, dtype=torch.bool))
    torch.testing.assert_close(log_prob[1:, :, :4], alone)
    assert bool(log_prob[1, :, 4:].isneginf().all())


def made(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Passages in which the token that is like what is asked for is right; in some none is."""
    generator = torch.Generator().manual_seed(7)
    asked = torch.randn(count, WIDTH, generator=generator)
    states = torch.randn(count, 9, WIDTH, generator=generator)
    right = torch.randint(1, 8, (count,), generator=generator)
    right[::5] = NONE
    named = right > 0
    states[named, right[named]] = asked[named]
    return asked, states, right


def test_learns_from_the_first_step_and_overfits_fifty_examples() -> None:
    model = pointer()
    asked, states, right = made(50)
    there = torch.ones(50, 9, dtype=torch.bool)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)

    def loss() -> torch.Tensor:
        log_prob = model(asked, states, there)
        return -log_prob[torch.arange(50)[:, None], torch.arange(2), right[:, None]].mean()

    loss().backward()
    learned = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert learned == {"asked.weight", "asked.bias", "told.weight", "none"}
    for _ in range(400):
        optimiser.zero_grad()
        value = loss()
        value.backward()
        optimiser.step()
    found = [model.find(a, s) for a, s in zip(asked, states, strict=True)]
    expected = [None if r == NONE else (r, r + 1) for r in right.tolist()]
    assert [None if span is None else span[:2] for span in found] == expected


def test_is_small_in_a_file_and_comes_back(tmp_path: Path) -> None:
    model = BridgePointer(BridgeConfig())
    path = tmp_path / "bridge.safetensors"
    checkpoint.save(model, path, preset="pocket", eight_bit=True)
    assert path.stat().st_size < 20_000
    other = BridgePointer(checkpoint.read_config(path, BridgeConfig))
    checkpoint.load(other, path, preset="pocket")
    torch.testing.assert_close(other.told.weight, model.told.weight, atol=1e-3, rtol=0)


def test_flops_are_those_of_its_products() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = pointer()
    with FlopCounterMode(display=False) as counter:
        model.find(torch.randn(WIDTH), torch.randn(11, WIDTH))
    assert flops(CONFIG, 11) == counter.get_total_flops()
