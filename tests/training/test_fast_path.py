"""The threshold of the fast path: chosen by its rule, on held-out questions, and written down."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import tiny_training
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.components import read_settings
from skipqa.config import Config
from skipqa.nn.drafter import calibrate_threshold
from skipqa.pipeline import Pipeline
from skipqa.stages.draft import is_counting
from skipqa.tasks.example import Example
from skipqa.training.answered import Answered, Asked, answer_all, sample
from skipqa.training.fast_path import (
    STAGE,
    FastPathSettings,
    choose,
    choose_counting,
    routed,
    summary,
)
from skipqa.training.pipelines import Source, open_workers
from skipqa.training.run import Run
from skipqa.training.stage import Inputs
from skipqa.training.stage1 import mixture

SETTINGS = FastPathSettings(questions=2, perceptual_ratio=2, counting=0, workers=1)


def random_scores(seed: int, count: int) -> Answered:
    """Confidences with ties; the more confident, the more often right."""
    generator = torch.Generator().manual_seed(seed)
    confidence = (torch.rand(count, generator=generator) * 20).ceil() / 20
    drafted = (torch.rand(count, generator=generator) < confidence).float()
    full = (torch.rand(count, generator=generator) < 0.6).float()
    return Answered(confidence, drafted, full, torch.zeros(count), torch.zeros(count))


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_four_in_ten_are_drafted_or_fewer_where_that_loses_more(seed: int, count: int) -> None:
    scores, settings = random_scores(seed, count), FastPathSettings()
    threshold = choose(scores, settings)
    found = routed(scores, threshold)
    assert found["rate"] <= 0.4 + 1 / count
    affordable = calibrate_threshold(scores.confidence, scores.drafted, scores.full).threshold
    four_in_ten = float(scores.confidence.quantile(0.6))
    assert threshold == pytest.approx(max(affordable, four_in_ten))
    assert found["accuracy"] >= float(scores.full.mean()) - 0.4 - 1e-6
    if threshold == affordable:
        assert found["accuracy"] >= found["full"] - 0.01 - 1e-6


def asked(questions: list[str]) -> list[Asked]:
    return [
        ((Path("photos.zip"), f"{n}.webp"), Example(n, f"{n}.webp", text, source="coco"))
        for n, text in enumerate(questions)
    ]


def test_counting_has_the_lowest_threshold_that_loses_nothing_and_none_below_others() -> None:
    scores = random_scores(5, 400)
    questions = ["How many dogs are there?" if n % 2 else "What is this?" for n in range(400)]
    counting = scores.select(range(1, 400, 2))
    fitted = STAGE.fit(asked(questions), scores, Config(), FastPathSettings())
    own, others = (
        choose_counting(counting),
        choose(scores.select(range(0, 400, 2)), FastPathSettings()),
    )
    assert fitted.settings["draft"] == {
        "threshold": others,
        "counting_threshold": max(own, others),
    }
    found = fitted.metrics["counting"]["own"]
    assert (found["questions"], found["threshold"]) == (200, max(own, others))
    assert routed(counting, own)["accuracy"] >= found["full"] - 1e-6
    for lower in sorted({value for value in counting.confidence.tolist() if value < own}):
        assert routed(counting, lower - 1e-6)["accuracy"] < found["full"]


def test_few_counting_questions_share_the_threshold() -> None:
    scores = random_scores(5, 50)
    fitted = STAGE.fit(asked(["How many?"] * 50), scores, Config(), FastPathSettings())
    threshold = choose(scores, FastPathSettings())
    assert fitted.settings["draft"] == {
        "threshold": threshold,
        "counting_threshold": threshold,
    }


def test_more_counting_questions_are_drawn_each_once(data: Path) -> None:
    mixed = mixture.read(data)
    drawn = STAGE.draw(mixed, FastPathSettings(questions=2, perceptual_ratio=2), 3)
    plain = sample(mixed, "held-out", {"okvqa": 2, "coco": 1}, 3)
    assert drawn[: len(plain)] == plain
    more = drawn[len(plain) :]
    assert all(is_counting(example.question) for _, example in more)
    assert all(example.split == "held-out" for _, example in more)
    assert len({(photo, example.question) for photo, example in drawn}) == len(drawn)


def test_routing_is_strict_and_by_source() -> None:
    scores = Answered(
        torch.tensor([0.9, 0.5, 0.1]),
        torch.tensor([1.0, 0.0, 0.0]),
        torch.tensor([0.0, 1.0, 1.0]),
        torch.zeros(3),
        torch.zeros(3),
    )
    found = routed(scores, 0.5)
    assert found["rate"] == pytest.approx(1 / 3)
    assert found["accuracy"] == 1
    assert found["full"] == pytest.approx(2 / 3)
    assert routed(scores.select([1, 2]), 0.0)["accuracy"] == 0


def test_questions_are_held_out_and_drawn_by_the_seed(data: Path) -> None:
    mixed = mixture.read(data)
    settings = FastPathSettings(questions=99, perceptual_ratio=1)
    asked = sample(mixed, "held-out", settings.counts("held-out"), 3)
    assert {example.source for _, example in asked} == {"okvqa", "coco"}
    assert {example.split for _, example in asked} == {"held-out"}
    rows = mixed.select("okvqa", "held-out")
    random.Random(3).shuffle(rows)
    assert [example for _, example in asked][: len(rows)] == [mixed.examples[r] for r in rows]
    val = sample(mixed, "val", settings.counts("val"), 3)
    assert {example.source for _, example in val} == {"okvqa", "vqav2"}


def test_scores_are_of_drafts_and_of_full_answers_and_survive_a_kill(
    trained_pipeline: Pipeline, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage writes the threshold next to the components that it began with."""
    monkeypatch.setattr(Source, "load", lambda _: trained_pipeline)
    start, out = tmp_path / "start", tmp_path / "out"
    start.mkdir()
    (start / "drafter.safetensors").touch()
    (start / "settings.toml").write_text('[decode]\nprompt = "short"\n')
    metrics = STAGE.run(Inputs(data, components=start), SETTINGS, Run(out))
    mixed = mixture.read(data)
    asked = sample(mixed, "held-out", SETTINGS.counts("held-out"), Run(out).seed)
    with open_workers(Source(), 1) as workers:
        scores = answer_all(asked, workers, Run(tmp_path / "again"), STAGE.name)
        known = tmp_path / "again" / "state" / "fast_path" / "00000.json"
        known.write_text(json.dumps([(0.25, 1.0, 0.0, -1.0, 0.0)] * len(asked)))
        read = answer_all(asked, workers, Run(tmp_path / "again"), STAGE.name)
    assert read.confidence.tolist() == [0.25] * len(asked)
    for n, ((archive, name), example) in enumerate(asked):
        picture = tmp_path / "photo.webp"
        picture.write_bytes(tiny_training.drawn(int(Path(name).stem)))
        answer = trained_pipeline.answer(picture, example.question, fast_path=False)
        assert archive.exists()
        assert float(scores.confidence[n]) == pytest.approx(answer.state.draft.confidence)
        assert float(scores.full[n]) == example.answers.get(answer.text, 0.0)
    threshold = metrics["fast_path"]["chosen"]["all"]["threshold"]
    assert threshold == choose(scores, SETTINGS)
    assert metrics["fast_path"]["chosen"] == summary(scores, asked, threshold)
    assert read_settings(out / "settings.toml") == {
        "decode": {"prompt": "short"},
        "draft": {"threshold": threshold, "counting_threshold": threshold},
    }
    assert {path.name for path in out.iterdir()} == {
        *("config.json", "metrics.json", "drafter.safetensors", "settings.toml"),
    }
    assert STAGE.run(Inputs(data, components=start), SETTINGS, Run(out)) == metrics
