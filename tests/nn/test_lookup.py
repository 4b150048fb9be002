"""The gate and the choice of indexes: they learn, they are stored, and older files stay as they
were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from skipqa.nn import checkpoint
from skipqa.nn.budget import (
    DifficultyBudgetConfig,
    DiscreteBudget,
    DiscreteBudgetConfig,
    build_budget,
    flops,
    joined,
)

SIGNALS, INDEXES = 3, 4
CONFIG = DiscreteBudgetConfig(
    5, 4, hidden=16, passages=(2, 16), signals=SIGNALS, gate=True, index_width=6
)


def gated(seed: int = 0, scale: float = 1.0) -> DiscreteBudget:
    torch.manual_seed(seed)
    model = DiscreteBudget(CONFIG)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return model


def asked(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(n, width, generator=generator) for width in (5, 4, SIGNALS))  # type: ignore[return-value]


@given(seed=st.integers(0, 1_000), threshold=st.floats(-3, 3, width=32))
def test_the_gate_alone_closes_retrieval(seed: int, threshold: float) -> None:
    model = gated(seed)
    assert model.gate is not None
    model.gate.threshold.fill_(threshold)
    visual, question, signals = (one[0] for one in asked(1, seed))
    budget = model.decide(visual, question, 256, 16, signals)
    assert budget.expected_gain is not None
    assert budget.passages == 0 if budget.expected_gain < threshold else budget.passages >= 2
    closed = float(model.gate.threshold) > budget.expected_gain
    assert (budget.passages == 0) == closed
    assert 32 <= budget.tokens <= 128


def test_relaxed_gates_tend_to_the_hard_one() -> None:
    model = gated()
    visual, question, signals = asked(50)
    allocation = model(visual, question, 256, 16, signals)
    hard, soft = (model.relaxed(allocation, temperature) for temperature in (0.0, 1e-5))
    torch.testing.assert_close(soft.passages, hard.passages, atol=1e-3, rtol=0)
    assert {bool(open) for open in hard.passages > 0} == {True, False}


def test_every_part_gets_a_gradient() -> None:
    model = gated()
    assert model.gate is not None
    assert model.sources is not None
    visual, question, signals = (one.requires_grad_() for one in asked(8))
    allocation = model(visual, question, 256, 16, signals)
    logits = model.sources(joined(visual, question, signals), torch.randn(INDEXES, 6))
    assert allocation.gain is not None
    loss = allocation.gain.square().mean() + logits.square().mean()
    (loss + allocation.tokens.mean() + allocation.passages.mean()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    for one in (visual, question, signals):
        assert one.grad is not None
        assert (one.grad != 0).any(0).all()


def test_the_gate_overfits_fifty_questions() -> None:
    torch.manual_seed(0)
    model = DiscreteBudget(CONFIG)
    visual, question, signals = asked(50)
    target = torch.randint(-1, 2, (50,)).float()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(600):
        gain = model(visual, question, 256, 16, signals).gain
        assert gain is not None
        loss = F.mse_loss(gain, target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.01


def test_a_perfect_signal_makes_a_perfect_gate() -> None:
    torch.manual_seed(0)
    model = DiscreteBudget(CONFIG)
    visual, question, signals = asked(400)
    visual, question = F.normalize(visual, dim=1), F.normalize(question, dim=1)
    signals = signals.sign()
    target = signals[:, 1]
    train, others = slice(0, 200), slice(200, 400)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.05)
    for _ in range(100):
        gain = model(visual[train], question[train], 256, 16, signals[train]).gain
        assert gain is not None
        optimiser.zero_grad()
        F.mse_loss(gain, target[train]).backward()
        optimiser.step()
    found = model(visual[others], question[others], 256, 16, signals[others])
    opened = model.relaxed(found, 0.0).passages > 0
    assert (opened == (target[others] > 0)).float().mean() > 0.95


def test_questions_find_their_index_by_its_embedding() -> None:
    """Also one that was not trained with: a mixture of two that were."""
    torch.manual_seed(0)
    model = DiscreteBudget(CONFIG)
    assert model.sources is not None
    indexes = F.normalize(torch.randn(INDEXES, 6), dim=1)
    visual, question, signals = asked(600)
    best = (question @ torch.randn(4, 6) @ indexes.T).argmax(1)
    target = F.one_hot(best, INDEXES).float()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    known = joined(visual, question, signals)
    for _ in range(300):
        logits = model.sources(known[:400], indexes)
        optimiser.zero_grad()
        F.binary_cross_entropy_with_logits(logits, target[:400]).backward()
        optimiser.step()
    found = model.sources(known[400:], indexes).argmax(1)
    assert (found == best[400:]).float().mean() > 0.85


@given(seed=st.integers(0, 200), threshold=st.floats(0, 1, width=32))
def test_one_index_at_least_is_searched(seed: int, threshold: float) -> None:
    model = gated(seed)
    assert model.sources is not None
    model.sources.threshold.fill_(threshold)
    visual, question, signals = (one[0] for one in asked(1, seed))
    useful = model.useful(visual, question, signals, torch.randn(INDEXES, 6))
    assert useful.shape == (INDEXES,)
    assert useful.any()
    if threshold == 0:
        assert useful.all()
    assert model.chooses_indexes == (threshold > 0)


@pytest.mark.parametrize("eight_bit", [False, True])
def test_thresholds_come_back_from_the_file(tmp_path: Path, eight_bit: bool) -> None:
    model, fresh = gated(), DiscreteBudget(CONFIG)
    assert model.gate is not None
    assert model.sources is not None
    model.gate.threshold.fill_(0.03125)
    model.sources.threshold.fill_(0.25)
    path = tmp_path / "budget.safetensors"
    checkpoint.save(model, path, preset="pocket", eight_bit=eight_bit)
    assert checkpoint.read_config(path, DiscreteBudgetConfig) == CONFIG
    checkpoint.load(fresh, path, preset="pocket")
    assert fresh.gate is not None
    assert fresh.sources is not None
    assert (float(fresh.gate.threshold), float(fresh.sources.threshold)) == (0.03125, 0.25)


@pytest.mark.parametrize(
    "config", [DiscreteBudgetConfig(5, 4, hidden=8), DifficultyBudgetConfig(5, 4)], ids="AB"
)
def test_a_file_from_before_signals_still_loads(
    tmp_path: Path, config: DiscreteBudgetConfig | DifficultyBudgetConfig
) -> None:
    model, path = build_budget(config), tmp_path / "budget.safetensors"
    later = {"signals", "gate", "index_width"}
    stored = {name: getattr(config, name) for name in config.__slots__ if name not in later}
    checkpoint.save_tensors(
        model.state_dict(), path, component=type(model).__name__, preset="pocket", config=stored
    )
    again = build_budget(checkpoint.read_config(path, type(config)))
    checkpoint.load(again, path, preset="pocket")
    visual, question, _ = (one[0] for one in asked(1))
    assert again.decide(visual, question, 256, 16) == model.decide(visual, question, 256, 16)
    assert again.decide(visual, question, 256, 16).expected_gain is None


def test_flops_are_those_of_the_counter() -> None:
    model = gated()
    assert model.sources is not None
    visual, question, signals = (one[0] for one in asked(1))
    indexes = torch.randn(INDEXES, 6)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(visual, question, 256, 16, signals)
        model.useful(visual, question, signals, indexes)
    assert flops(CONFIG, INDEXES) == counter.get_total_flops()
