"""Stage V on made-up values: the gate wins where it can, and nothing ships that loses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F

from skipqa.nn.budget import DiscreteBudget
from skipqa.stages.budget_signals import NUM_SIGNALS
from skipqa.training.pathway import stage5_budget
from skipqa.training.pathway.budget_grid import PASSAGES, TOKENS, BudgetGrid
from skipqa.training.pathway.budget_loss import GatedTraining, gated_loss
from skipqa.training.pathway.budget_quality import (
    Decided,
    best_fixed,
    compare_budgets,
    gate_curve,
)
from skipqa.training.pathway.budget_settings import BudgetTraining
from skipqa.training.pathway.budget_targets import Targets
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.source_quality import choose_sources
from skipqa.training.pathway.stage5_budget import BudgetInputs, BudgetPart, CrossValidated
from skipqa.training.run import Run

WIDTH, INDEXES, NUM_TOKENS = 12, 3, 256
CLOSED = 10.0  # GFLOPs without retrieval
SETTINGS = BudgetTraining(steps=100, hidden=16, lr=1e-2)


def made(n: int, *, noise: float = 0.0) -> BudgetGrid:
    """Passages help where a signal says so, which is in two thirds of Pocket-KB's questions and a
    few of OK-VQA's, and harm the others. They cost as much again as answering without."""
    generator = torch.Generator().manual_seed(0)
    of_okvqa = torch.arange(n) % 2 == 0
    chance = torch.rand(n, generator=generator)
    helped = torch.where(of_okvqa, chance < 0.1, chance < 0.67)
    points = torch.tensor(PASSAGES)
    value = torch.where(helped[:, None], (points > 0).float(), (points == 0).float())
    seen = helped ^ (torch.rand(n, generator=generator) < noise)
    signals = torch.rand(n, NUM_SIGNALS, generator=generator)
    signals[:, 1] = seen.float()
    giga = CLOSED + (points > 0) * CLOSED + 0.1 * points
    return BudgetGrid(
        value[:, None, :].repeat(1, len(TOKENS), 1),
        giga.repeat(n, len(TOKENS), 1),
        F.normalize(torch.randn(n, WIDTH, generator=generator), dim=1),
        F.normalize(torch.randn(n, WIDTH, generator=generator), dim=1),
        signals,
        tuple("okvqa" if one else "pocket-kb" for one in of_okvqa.tolist()),
    )


def targets_of(grid: BudgetGrid, fold: torch.Tensor) -> Targets:
    n = len(grid)
    useful = F.one_hot(torch.arange(n) % INDEXES, INDEXES).float()
    useful[::4] = torch.nan
    gain = torch.where(torch.arange(n) % 3 == 0, grid.gain, torch.nan)
    return Targets(
        *(grid.visual, grid.question, grid.signals),
        gain,
        torch.arange(n) % 5 - 1,
        useful,
        fold,
        torch.eye(WIDTH)[:INDEXES],
    )


def inputs_of(grid: BudgetGrid, folds: int = 5) -> BudgetInputs:
    fold = torch.arange(len(grid)) // 2 % folds
    return BudgetInputs(grid, fold, targets_of(grid, fold), tuple(range(len(grid))), grid)


class NoRecords:
    """As much of a context as training on a made-up grid reads; indexes are not left out."""

    def __init__(self, folder: Path) -> None:
        self.run = Run(folder)
        self.records = {
            "question": torch.zeros(1, WIDTH),
            "meaning": torch.zeros(1, NUM_TOKENS, WIDTH),
        }


def trained_on(
    inputs: BudgetInputs, folder: Path, settings: BudgetTraining = SETTINGS
) -> tuple[dict[str, Any], dict[str, bool]]:
    part, context = BudgetPart(), cast(TrainingContext, NoRecords(folder))
    model = part.train(context, settings, inputs)
    compared = part.compare(context, settings, inputs, model)
    assert isinstance(model["A"], CrossValidated)
    assert len(model["A"].folds) == settings.folds
    return compared, part.ships(context, compared)


@pytest.fixture
def without_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which indexes to leave out is decided by answering again."""
    none = stage5_budget.SourceChoice(0.0, 0.0, 1.0, 1.0, 0, 0.0, 0.0)
    monkeypatch.setattr(stage5_budget, "choose_sources", lambda *_: none)


def test_fixed_budgets_may_be_mixed() -> None:
    value, giga = torch.tensor([0.2, 0.6, 0.5]), torch.tensor([10.0, 30.0, 40.0])
    expected = {
        5.0: (0.2, [1.0, 0.0, 0.0]),  # there is nothing cheaper
        10.0: (0.2, [1.0, 0.0, 0.0]),
        20.0: (0.4, [0.5, 0.5, 0.0]),
        35.0: (0.6, [0.0, 1.0, 0.0]),  # to spend more may be worse
        50.0: (0.6, [0.0, 1.0, 0.0]),
    }
    count = len(expected)
    found = best_fixed(value.repeat(count, 1), giga.repeat(count, 1), torch.tensor([*expected]))
    for (best, drawn), score, often in zip(expected.values(), *found, strict=True):
        assert float(score) == pytest.approx(best, abs=1e-5)
        assert often.tolist() == pytest.approx(drawn, abs=1e-5)


@pytest.mark.usefixtures("without_sources")
def test_a_perfect_signal_wins_and_ships(tmp_path: Path) -> None:
    settings = replace(SETTINGS, folds=3)
    compared, ships = trained_on(inputs_of(made(240), folds=3), tmp_path, settings)
    assert ships == {"budget": True}
    for split in ("held-out", "val"):
        found = compared[split]
        assert found["adaptive"]["score"] > 0.95
        assert found["gain"]["low"] > 0.1
        assert set(found["by_source"]) == {"okvqa", "pocket-kb"}
        assert found["by_source"]["okvqa"]["adaptive"]["giga_flops"] < 1.25 * CLOSED
        looked_up = {s: 1 - one["no_retrieval"] for s, one in found["by_source"].items()}
        assert looked_up["okvqa"] < 0.2 < 0.5 < looked_up["pocket-kb"] < 0.8
    assert compared["B"]["held-out"]["gain"]["mean"] > 0
    assert set(compared["errors"]) == {"100", "50", "20"}


@pytest.mark.usefixtures("without_sources")
def test_without_a_signal_nothing_ships(tmp_path: Path) -> None:
    grid = made(160)
    shuffled = torch.randperm(160, generator=torch.Generator().manual_seed(1))
    blind = replace(grid, signals=grid.signals[shuffled])
    settings = replace(SETTINGS, steps=60, folds=2)
    compared, ships = trained_on(inputs_of(blind, folds=2), tmp_path, settings)
    assert ships == {"budget": False}
    assert compared["held-out"]["gain"]["low"] < 0


@pytest.mark.usefixtures("without_sources")
def test_the_same_again(tmp_path: Path) -> None:
    inputs, settings = inputs_of(made(60), folds=2), replace(SETTINGS, steps=20, folds=2)
    first, second = (
        trained_on(inputs, tmp_path / name, settings)[0] for name in ("first", "second")
    )
    assert first == second


def test_who_is_judged_was_not_seen() -> None:
    inputs = inputs_of(made(60))
    for fold in range(5):
        seen = inputs.without(fold)
        assert set(seen.rows).isdisjoint((inputs.fold == fold).nonzero()[:, 0].tolist())
        assert not (seen.targets.fold == fold).any()
        assert len(seen.train) == len(seen.rows) == len(seen.fold) == 48


def test_the_curve_reaches_from_everything_to_nothing() -> None:
    grid = made(200)
    opened = Decided(torch.full((200,), 32.0), torch.full((200,), 6.0), grid.gain)
    curve = gate_curve(opened, grid, most_flops=1.25)
    assert curve.looked_up[0] == {"all": 1.0, "okvqa": 1.0, "pocket-kb": 1.0}
    assert set(curve.looked_up[-1].values()) == {0.0}
    assert not curve.affordable[0]
    assert curve.affordable[-1]
    best = opened.with_gate(torch.tensor(curve.best()))
    assert float(best.score(grid)[0].mean()) == 1.0
    rows = curve.metrics()
    assert set(rows[0]) == {"threshold", "looked_up", "score", "giga_flops", "affordable"}
    # What OK-VQA may cost limits everyone
    poor = gate_curve(opened, grid, most_flops=1.0)
    assert poor.best() == poor.values[-1]


def test_a_cost_without_a_gain_is_a_loss() -> None:
    """A gate that looks up at random scores no more than mixtures of fixed budgets."""
    grid = made(400)
    chance = torch.rand(400, generator=torch.Generator().manual_seed(3))
    opened = Decided(torch.full((400,), 32.0), torch.full((400,), 6.0), chance, flops=10_000)
    found = compare_budgets(opened.with_gate(torch.tensor(0.5)), grid, grid)
    assert found["gain"]["mean"] < 0.03
    assert found["gain"]["low"] < 0


def test_every_part_learns() -> None:
    torch.manual_seed(0)
    grid = made(50)
    part, context = BudgetPart(), cast(TrainingContext, NoRecords(Path()))
    model = part.build(context, SETTINGS)["A"]
    assert isinstance(model, GatedTraining)
    loss = gated_loss(model, grid, inputs_of(grid).targets, SETTINGS, NUM_TOKENS)
    loss(0).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_fifty_questions_can_be_learned_by_heart(tmp_path: Path) -> None:
    grid = made(50, noise=0.5)
    settings = replace(SETTINGS, steps=400, hidden=64, dropout=0.0, no_draft=0.0, weight_decay=0)
    part, context = BudgetPart(), cast(TrainingContext, NoRecords(tmp_path))
    inputs = replace(inputs_of(grid), targets=targets_of(grid, torch.zeros(50)).without(0))
    model = part._fit(context, settings, inputs, "all")
    assert isinstance(model, GatedTraining)
    assert isinstance(model.controller, DiscreteBudget)
    gain = model.controller(grid.visual, grid.question, 256, 16, grid.signals).gain
    assert gain is not None
    assert F.mse_loss(gain, grid.gain) < 0.02


class Answers:
    """A context in which every question that is answered again gets the same score."""

    def __init__(self, score: float, count: int) -> None:
        self.score = score
        self.asked: dict[str, tuple[str, ...]] = {}
        about = [{"source": "made", "id": str(i)} for i in range(count)]
        self.records = SimpleNamespace(about=about)
        self.pipeline = SimpleNamespace(library=SimpleNamespace(names=("facts", "letters", "maps")))

    def spread(self, work: object, rows: list[int], what: str, skipped: Any) -> list[float]:
        self.asked = skipped
        return [self.score] * len(rows)


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_indexes_are_left_out_where_no_answer_is_lost(score: float) -> None:
    """Two thirds of the questions need an index of their own, the others are unknown."""
    grid, n = made(60), 60
    useful = F.one_hot(torch.arange(n) % 3, 3).float()
    probs = 0.1 + 0.8 * useful
    useful[::3] = torch.nan
    context = Answers(score, n)
    found = choose_sources(
        cast(TrainingContext, context), list(range(n)), grid, probs, useful, recall=0.98
    )
    assert found.tried == pytest.approx(0.9)
    assert found.recall == 1.0
    assert (found.questions, found.searched) == (n, pytest.approx(1 / 3))
    assert found.threshold == (found.tried if score else 0.0)
    assert context.asked["made/1"] == ("facts", "maps")


def test_where_no_passage_is_known_to_be_useful_all_indexes_are_searched() -> None:
    grid, unknown = made(6), torch.full((6, 3), torch.nan)
    context = cast(TrainingContext, Answers(1.0, 6))
    found = choose_sources(context, list(range(6)), grid, torch.rand(6, 3), unknown, 0.98)
    assert found.threshold == 0.0
