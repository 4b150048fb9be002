"""The choice of how to read: its costs and price decide as they should, and it can learn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from skipqa import components
from skipqa.components import Components
from skipqa.costs.flops import count_flops
from skipqa.errors import UserError
from skipqa.nn.reading_choice import WAYS, ReadingChoice, ReadingChoiceConfig, best_ways, flops
from skipqa.stages.budget_signals import NUM_SIGNALS
from skipqa.types import Widths

CONFIG = ReadingChoiceConfig(6, 4, NUM_SIGNALS, hidden=16)
COST = torch.tensor([1.0, 0.8, 0.9, 0.4])  # in the order of WAYS
ALL = torch.ones(len(WAYS), dtype=torch.bool)
EXPECTED = st.lists(st.floats(-1, 2, width=32), min_size=len(WAYS), max_size=len(WAYS))


def asked(n: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(n, CONFIG.visual_width, generator=generator),
        torch.randn(n, CONFIG.question_width, generator=generator),
        torch.rand(n, CONFIG.signals, generator=generator),
    )


def head(config: ReadingChoiceConfig = CONFIG) -> ReadingChoice:
    torch.manual_seed(0)
    model = ReadingChoice(config)
    model.start_from(torch.full((len(WAYS),), 0.5), 10 * COST)
    return model


def test_it_begins_with_the_best_fixed_way() -> None:
    model, mean = head(), torch.tensor([0.4, 0.3, 0.5, 0.2])
    model.start_from(mean, 10 * COST)
    torch.testing.assert_close(model(*asked(9)), mean.expand(9, -1), atol=0.05, rtol=0)
    torch.testing.assert_close(model.cost, COST)


def test_of_equally_good_ways_the_cheapest() -> None:
    model = head()
    equal = torch.full((len(WAYS),), 0.5)
    assert model.choose(equal, WAYS) == "none"
    assert model.choose(equal, ("text", "fused", "fused+best")) == "fused"
    assert model.choose(torch.tensor([0.5, 0.4, 0.5, 0.4]), WAYS) == "fused+best"


@given(expected=EXPECTED, open_ways=st.sets(st.sampled_from(WAYS), min_size=1))
def test_a_way_that_is_closed_is_never_chosen(expected: list[float], open_ways: set[str]) -> None:
    ways = [way for way in WAYS if way in open_ways]
    chosen = head().choose(torch.tensor(expected), ways)
    assert chosen in ways
    assert expected[WAYS.index(chosen)] == max(expected[WAYS.index(way)] for way in ways)


@given(expected=EXPECTED, prices=st.tuples(st.floats(0, 10), st.floats(0, 10)))
def test_a_higher_price_never_costs_more(
    expected: list[float], prices: tuple[float, float]
) -> None:
    low, high = sorted(prices)
    scores = torch.tensor([expected, expected], dtype=torch.float64)
    chosen = best_ways(scores, COST.double(), torch.tensor([low, high]).double(), ALL)
    assert COST[chosen[1]] <= COST[chosen[0]]


def test_every_part_gets_a_gradient() -> None:
    model = head()
    known = [one.requires_grad_() for one in asked(8)]
    F.mse_loss(model(*known), torch.rand(8, len(WAYS))).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    for one in known:
        assert one.grad is not None
        assert (one.grad != 0).any(0).all()


def test_it_learns_a_rule() -> None:
    """Passages are needed where a signal says so, and text where another does."""
    model, (visual, question, signals) = head(), asked(400)
    visual, question = F.normalize(visual, dim=1), F.normalize(question, dim=1)
    signals = signals.round()
    needed, as_text = signals[:, 1] > 0, signals[:, 4] > 0
    right = torch.stack([needed, needed & ~as_text, needed, ~needed], dim=1).float()
    train, others = slice(0, 200), slice(200, 400)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.05)
    for _ in range(150):
        loss = F.mse_loss(model(visual[train], question[train], signals[train]), right[train])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        expected = model(visual[others], question[others], signals[others])
    chosen = best_ways(expected, COST, torch.tensor(1.0), ALL)
    best = best_ways(right[others], COST, torch.tensor(1.0), ALL)
    assert len(best.unique()) == 3  # never text, which costs more than fused tokens with the best
    assert (chosen == best).float().mean() > 0.95


def test_its_flops_are_counted() -> None:
    model, known = head(), [one[0] for one in asked(1)]
    assert flops(CONFIG) == count_flops(lambda: model(*known))


def test_it_is_small_and_comes_back_as_it_was(tmp_path: Path) -> None:
    made = head(ReadingChoiceConfig(384, 384, NUM_SIGNALS))
    made.price.fill_(0.05)
    components.save(Components(reading_choice=made), tmp_path, preset="pocket")
    assert (tmp_path / "reading_choice.safetensors").stat().st_size < 500_000
    read = components.load(tmp_path, preset="pocket").reading_choice
    assert read is not None
    assert read.config == made.config
    for name, value in made.state_dict().items():
        assert torch.equal(read.state_dict()[name], value), name


def test_other_widths_are_refused(tmp_path: Path) -> None:
    other = Components(reading_choice=head())
    with pytest.raises(UserError, match=r"reading_choice\.safetensors was trained for visual"):
        components.check_widths(other, Widths(256, 64, 1_280, 384, 576), preset="pocket")
