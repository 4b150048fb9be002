"""How passages are read, learned by question: on made-up values, and on a small world."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import small_world
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from skipqa import components
from skipqa.nn.budget import DiscreteBudget, DiscreteBudgetConfig
from skipqa.nn.fusion_reader import FusionReader, FusionReaderConfig
from skipqa.nn.reading_choice import WAYS
from skipqa.pipeline import Pipeline
from skipqa.stages.budget_signals import NUM_SIGNALS
from skipqa.trace import Trace
from skipqa.training.pathway import gather, reading_grid
from skipqa.training.pathway.answering import GIGA, Answered, each
from skipqa.training.pathway.budget_settings import BudgetTraining
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.reading_quality import PRICES, Expected, choice_ships, price_curve
from skipqa.training.pathway.stage5_reading import CrossValidated, ReadingInputs, ReadingPart
from skipqa.training.run import Run
from skipqa.types import Budget, ReadAs

WIDTH = 12
GIGAS = torch.tensor([10.0, 8.0, 9.0, 4.0])  # in the order of WAYS
SETTINGS = BudgetTraining(steps=100, hidden=16, lr=1e-2, folds=3)


def made(n: int, *, blind: bool = False) -> Answered:
    """Passages answer what a signal says, and harm the others. Fused tokens are enough for half."""
    generator = torch.Generator().manual_seed(0)
    signals = torch.rand(n, NUM_SIGNALS, generator=generator).round()
    needed, as_text = signals[:, 1] > 0, signals[:, 4] > 0
    value = torch.stack([needed, needed & ~as_text, needed, ~needed], dim=1).float()
    if blind:
        signals = signals[torch.randperm(n, generator=generator)]
    return Answered(
        value,
        GIGAS + torch.rand(n, 1, generator=generator),
        F.normalize(torch.randn(n, WIDTH, generator=generator), dim=1),
        F.normalize(torch.randn(n, WIDTH, generator=generator), dim=1),
        signals,
        tuple(("okvqa", "pocket-kb")[i % 2] for i in range(n)),
    )


def inputs_of(answered: Answered, looked_up: float = 1.0) -> ReadingInputs:
    n = len(answered)
    return ReadingInputs(answered, torch.arange(n) < looked_up * n, torch.arange(n) // 2 % 3)


class NoRecords:
    """As much of a context as training on made-up values reads."""

    def __init__(self, folder: Path, pipeline: Pipeline) -> None:
        self.run, self.pipeline = Run(folder), pipeline
        self.records = {"question": torch.zeros(1, WIDTH)}


def trained_on(
    inputs: ReadingInputs, folder: Path, pipeline: Pipeline, settings: BudgetTraining = SETTINGS
) -> tuple[CrossValidated, dict[str, Any], dict[str, bool]]:
    part, context = ReadingPart(), cast(TrainingContext, NoRecords(folder, pipeline))
    model = part.train(context, settings, inputs)
    compared = part.compare(context, settings, inputs, model)
    return model, compared, part.ships(context, compared)


def test_a_perfect_signal_wins_and_ships(tmp_path: Path, pipeline: Pipeline) -> None:
    model, compared, ships = trained_on(inputs_of(made(240)), tmp_path, pipeline)
    assert ships == {"reading_choice": True}
    found = compared["held-out"]
    assert found["adaptive"]["score"] > 0.95
    assert found["gain"]["low"] > 0.1
    assert set(found["by_source"]) == {"okvqa", "pocket-kb"}
    assert set(found["fixed"]) == set(WAYS)
    for way, fixed in found["fixed"].items():
        assert fixed["gain"]["low"] > 0.2
        assert fixed["giga_flops"] == pytest.approx(float(GIGAS[WAYS.index(way)]) + 0.5, abs=0.1)
    assert found["adaptive"]["giga_flops"] < found["fixed"]["text"]["giga_flops"]
    cost = compared["cost"]
    assert cost["text"]["of_text"] == 1.0
    assert cost["none"]["of_text"] == pytest.approx(4.5 / 10.5, abs=0.01)
    assert model.choice.cost.tolist() == [cost[way]["of_text"] for way in WAYS]
    assert float(model.choice.price) == pytest.approx(compared["price"])
    assert len(compared["curve"]) == len(PRICES)


def test_without_a_signal_nothing_is_gained(tmp_path: Path, pipeline: Pipeline) -> None:
    _, compared, _ = trained_on(inputs_of(made(160, blind=True)), tmp_path, pipeline)
    assert compared["held-out"]["gain"]["low"] < 0


def test_what_the_budget_closes_is_judged_as_it_is_answered(
    tmp_path: Path, pipeline: Pipeline
) -> None:
    inputs = inputs_of(made(120), looked_up=0.5)
    shut = inputs.judged.only(range(60, 120))
    assert torch.equal(shut.value, inputs.answered.value[60:, 3:].expand(-1, 4))
    assert torch.equal(inputs.judged.value[:60], inputs.answered.value[:60])
    _, compared, _ = trained_on(inputs, tmp_path, pipeline, replace(SETTINGS, steps=20))
    assert compared["looked_up"] == 0.5


def test_the_same_again(tmp_path: Path, pipeline: Pipeline) -> None:
    inputs, settings = inputs_of(made(60)), replace(SETTINGS, steps=20)
    first, second = (
        trained_on(inputs, tmp_path / name, pipeline, settings)[1] for name in ("one", "other")
    )
    assert first == second


def test_who_is_judged_was_not_seen() -> None:
    inputs = inputs_of(made(60))
    for fold in range(3):
        assert not (inputs.without(fold).fold == fold).any()
        assert len(inputs.without(fold).answered) == 40


@given(seed=st.integers(0, 1_000), today=st.sampled_from(WAYS))
def test_a_price_may_not_cost_more_than_today(seed: int, today: ReadAs) -> None:
    """Some price never does."""
    answered, generator = made(40), torch.Generator().manual_seed(seed)
    scores = torch.rand(40, len(WAYS), generator=generator)
    expected = Expected(scores, (GIGAS / GIGAS[0]).expand(40, -1), flops=1_000)
    found = price_curve(expected, answered, today)
    outcome = expected.outcome(torch.tensor(found.best()), answered)
    assert outcome.giga.mean() <= 1.001 * answered.giga[:, WAYS.index(today)].mean()
    giga = [one["all"] for one in found.giga]
    assert giga == sorted(giga, reverse=True)


def compared(gain: float, lost: float, often: float) -> dict[str, Any]:
    of_source = {"today": "text", "fixed": {"text": {"gain": {"mean": -lost}}}}
    chosen = {"text": often, "none": 1 - often}
    return {"gain": {"mean": gain}, "chosen": chosen, "by_source": {"okvqa": of_source}}


def test_what_ships() -> None:
    assert choice_ships(compared(0.01, 0.0, 0.5))
    assert choice_ships(compared(0.0, 0.004, 0.5))
    assert not choice_ships(compared(-0.01, 0.0, 0.5))  # a draw between two ways is better
    assert not choice_ships(compared(0.01, 0.006, 0.5))  # a data set loses
    assert not choice_ships(compared(0.0, 0.0, 1.0))  # always the same


def fusion_reader(pipeline: Pipeline) -> FusionReader:
    """With random weights."""
    torch.manual_seed(0)
    widths, concepts = pipeline.backbone.widths, len(pipeline.backbone.concepts)
    sizes = widths.vision, concepts, widths.text, widths.decoder
    config = FusionReaderConfig(*sizes, heads=9, embedding_rms=0.1, early_layers=1, edge_width=8)
    return FusionReader(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def context(
    tmp_path_factory: pytest.TempPathFactory, pipeline: Pipeline, photo: Path
) -> TrainingContext:
    world = small_world.write(tmp_path_factory.mktemp("world") / "pocket-kb", photo)
    counts = {f"pocket-kb/{kind}": 99 for kind in ("train", "fresh", "held-out", "val")}
    rows = gather.questions(None, world, counts, seed=1)[:6]
    rows = [replace(row, split="held-out") for row in rows]
    reads = pipeline.with_components(fusion_reader=fusion_reader(pipeline))
    short = {"prompt": "short", "lower_case": True}
    return small_world.context(world, reads.with_config(decode=short), rows)


def test_every_way_costs_and_scores_what_answering_in_it_does(context: TrainingContext) -> None:
    """From verify on, as what a record holds may differ from its photo in the last bits."""
    answered = reading_grid.evaluate_ways(context, [0, 1])
    assert answered.value.shape == answered.giga.shape == (2, len(WAYS))
    text, fused, both, none = answered.giga.mean(0)
    assert none < fused < both
    assert none < text
    records, pipeline = context.records, context.pipeline
    [one, _] = each(pipeline, records.part([0, 1]))
    budget = Budget(29, pipeline.config.budget.passages)
    state, before = one.retrieved(budget)
    state = state.add(draft=one.draft)
    for way in ("text", "fused", "fused+best"):
        as_set, trace = one.pipeline.with_config(decode={"passages": way}), Trace()
        leaving = as_set.run(state, start="verify", trace=trace)
        chosen = state.add(budget=replace(state.budget, read_as=way))
        same = one.pipeline.run(chosen, start="verify")
        assert (same.prompt, same.answer) == (leaving.prompt, leaving.answer)
        assert (same.fused.for_decoder is None) is (way == "text")
        answer, place = leaving.answer.text, WAYS.index(way)
        assert float(answered.giga[0, place]) == pytest.approx((before + trace.flops) / GIGA)
        assert float(answered.value[0, place]) == one.right.get(answer.lower(), 0.0)


def test_what_the_budget_looks_up(context: TrainingContext, tmp_path: Path) -> None:
    rows = [0, 1, 2]
    assert reading_grid.looked_up(context, rows).all()
    width = context.records["question"].shape[1]
    closes = DiscreteBudget(
        DiscreteBudgetConfig(width, width, passages=(2, 16), signals=NUM_SIGNALS, gate=True)
    )
    assert closes.gate is not None
    closes.gate.threshold.fill_(99.0)
    again = small_world.again(context, tmp_path)
    again.export(closes, "budget", ships=True)  # by the part before
    assert not reading_grid.looked_up(again, rows).any()


def test_the_part_leaves_a_head_that_answers(context: TrainingContext, tmp_path: Path) -> None:
    settings = BudgetTraining(steps=5, folds=2)
    here = small_world.again(context, tmp_path)
    ReadingPart().run(here, settings)
    metrics = json.loads((tmp_path / "metrics.json").read_text())["reading_choice"]
    assert set(metrics["cost"]) == set(metrics["held-out"]["fixed"]) == set(WAYS)
    shipped = (tmp_path / "reading_choice.safetensors").is_file()
    assert shipped is metrics["ships"]
    assert metrics["held-out"]["today"] == "fused+best"  # as long as there is no choice
    settings_of = partial(ReadingPart().chosen_settings, context, {})
    assert settings_of({"reading_choice": True}) == {"decode": {"passages": "auto"}}
    assert settings_of({"reading_choice": False}) == {}
    learned = components.load(tmp_path / "trained", preset="pocket")
    components.check_widths(learned, context.pipeline.backbone.widths, preset="pocket")
    assert learned.reading_choice is not None
    # A finished part is not trained again
    ReadingPart().run(small_world.again(context, tmp_path, progress=_never), settings)


def _never(*_: object) -> None:
    raise AssertionError


def test_without_a_fusion_reader_the_part_says_so(context: TrainingContext, tmp_path: Path) -> None:
    without = replace(context, pipeline=context.pipeline.with_components(fusion_reader=None))
    here = small_world.again(without, tmp_path)
    ReadingPart().run(here, SETTINGS)
    found = here.run.metrics()["reading_choice"]
    assert found["ships"] is False
    assert "no fusion reader" in found["why"]
    assert not list(tmp_path.rglob("*.safetensors"))
