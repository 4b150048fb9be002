"""The confidence of answers: curves that recover what they were made from, fitted by a stage."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skipqa.components import read_settings
from skipqa.confidence import answer_features, draft_features, logistic
from skipqa.pipeline import Pipeline
from skipqa.training.answered import Answered
from skipqa.training.confidence import (
    STAGE,
    ConfidenceSettings,
    calibration,
    examples,
    fit_curves,
)
from skipqa.training.pipelines import Source
from skipqa.training.run import Run
from skipqa.training.stage import Inputs

DRAFTED, LOOKED_UP = (0.3, 1.2), (0.5, 0.6, 1.5, 0.4)


def made(count: int, seed: int = 0) -> Answered:
    """Questions whose answers are right as often as the curves above say."""
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.rand(count, generator=generator)
    log_prob = -4 * torch.rand(count, generator=generator)
    grounded = (torch.rand(count, generator=generator) < 0.3).float()
    chance = torch.rand(2, count, generator=generator)
    drafted, full = torch.zeros(count), torch.zeros(count)
    for n in range(count):
        sure, said, told = (float(x[n]) for x in (confidence, log_prob, grounded))
        drafted[n] = float(chance[0, n] < logistic(DRAFTED, draft_features(sure)))
        features = answer_features(said, bool(told), sure)
        full[n] = float(chance[1, n] < logistic(LOOKED_UP, features))
    return Answered(confidence, drafted, full, log_prob, grounded)


def test_the_curves_that_made_the_scores_are_found() -> None:
    curves = fit_curves(made(20_000), 0.5, ridge=0.0)
    assert curves.drafted == pytest.approx(DRAFTED, abs=0.15)
    assert curves.looked_up == pytest.approx(LOOKED_UP, abs=0.15)
    found = calibration(made(20_000, seed=1), 0.5, curves)
    for route in ("drafted", "looked_up"):
        assert found[route]["confidence"] == pytest.approx(found[route]["score"], abs=0.02)
        assert found[route]["ece"] < 0.03


@settings(max_examples=20)
@given(st.integers(0, 1_000), st.floats(0, 1))
def test_every_question_is_on_one_route(seed: int, threshold: float) -> None:
    answered = made(30, seed)
    answered.log_prob[::5] = math.nan  # what the reader did not measure teaches nothing
    drafted, looked_up = examples(answered, threshold)
    fast = answered.confidence > threshold
    assert len(drafted[1]) == int(fast.sum())
    assert len(looked_up[1]) == int((~fast & ~answered.log_prob.isnan()).sum())


def test_a_fitted_curve_is_calibrated_on_its_own_questions() -> None:
    """The gradient of the bias is the mean error: it is 0 at the minimum."""
    answered = made(500)
    found = calibration(answered, 0.6, fit_curves(answered, 0.6, ridge=1e-3))
    for route in ("drafted", "looked_up"):
        assert found[route]["confidence"] == pytest.approx(found[route]["score"], abs=1e-3)


def test_no_questions_no_curve() -> None:
    curves = fit_curves(made(50), threshold=1.0, ridge=1e-3)
    assert curves.drafted == ()
    assert len(curves.looked_up) == 4
    assert calibration(made(50), 1.0, curves)["drafted"] == {"questions": 0}


def test_the_stage_writes_the_curves_next_to_the_components(
    trained_pipeline: Pipeline, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source, "load", lambda _: trained_pipeline)
    start, out = tmp_path / "start", tmp_path / "out"
    start.mkdir()
    (start / "drafter.safetensors").touch()
    (start / "settings.toml").write_text("[draft]\nthreshold = 0.5\n")
    small = ConfidenceSettings(questions=2, perceptual_ratio=2, workers=1)
    metrics = STAGE.run(Inputs(data, components=start), small, Run(out))
    written = read_settings(out / "settings.toml")
    assert written["draft"] == {"threshold": 0.5}
    assert written["confidence"].keys() == {"drafted", "looked_up"}
    answered = metrics["confidence"]
    assert answered["drafted"]["questions"] + answered["looked_up"]["questions"] <= 3
    assert STAGE.run(Inputs(data, components=start), small, Run(out)) == metrics
