"""Saliency fidelity of the real pipeline: a token's worth is what its loss costs the answer."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from skipqa.claims.token_worth import Proxy, TokenAblation, measure_question
from skipqa.cli.theory import app
from skipqa.evaluation.results import newest
from skipqa.pipeline import Pipeline
from skipqa.state import State

QUESTION, ANSWER = "How is this drink brewed?", "by forcing hot water under pressure"


class Blinded:
    """The pipeline's backbone with the mean token at one position."""

    def __init__(self, pipeline: Pipeline, position: int) -> None:
        self.backbone, self.position = pipeline.backbone, position

    def __getattr__(self, name: str) -> object:
        return getattr(self.backbone, name)

    def encode_high_res(self, *arguments: object) -> object:
        tokens, flops = self.backbone.encode_high_res(*arguments)  # type: ignore[arg-type]
        changed = {}
        for name in ("features", "concept_probs", "meaning"):
            rows = getattr(tokens, name).clone()
            rows[self.position] = rows.mean(0)
            changed[name] = rows
        return dataclasses.replace(tokens, **changed), flops


def check_worth(pipeline: Pipeline, photo: Path, proxy: Proxy) -> None:
    """The worth of two tokens is the difference of two whole runs, as far as the proxy needs."""

    def score(system: Pipeline) -> float:
        if proxy == "evidence":
            state = system.run(State(photo, QUESTION), stop="verify")
            return math.log(max(state.verified.scores))
        state = system.run(State(photo, QUESTION))
        return pipeline.backbone.log_prob(state.prompt, ANSWER)

    ablation = TokenAblation(proxy, tokens=2, seed=4)
    saliency, worth, gap = measure_question(pipeline, photo, QUESTION, ANSWER, ablation)
    assert saliency.shape == worth.shape == (2,)
    assert gap >= 0
    drawn = torch.randperm(256, generator=torch.Generator().manual_seed(4))[:2].sort().values
    whole = score(pipeline)
    for position, found in zip(drawn.tolist(), worth.tolist(), strict=True):
        blinded = pipeline.with_backbone(Blinded(pipeline, position))  # type: ignore[arg-type]
        assert found == pytest.approx(whole - score(blinded), abs=1e-4)


@pytest.mark.parametrize("proxy", ["answer", "evidence"])
def test_worth_is_what_is_lost_without_the_token(
    pipeline: Pipeline, photo: Path, proxy: Proxy
) -> None:
    check_worth(pipeline, photo, proxy)


def test_small_regions_are_zoomed_into_without_the_token_too(
    trained_pipeline: Pipeline, photo: Path
) -> None:
    eager = trained_pipeline.with_config(zoom={"min_information": 0.0, "sure": 1.0, "largest": 1.0})
    assert eager.answer(photo, QUESTION, fast_path=False).trace["zoom"].kept
    check_worth(eager, photo, "evidence")


def test_command(photo: Path, home: Path, tmp_path: Path) -> None:
    rows = [
        {"question_id": 1, "image": photo.name, "question": QUESTION, "answer": ANSWER},
        {"question_id": 2, "image": "nowhere.png", "question": QUESTION, "answer": ANSWER},
    ]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["fidelity", "--questions", str(questions), "--images", str(photo.parent)]
    arguments += ["--results", str(tmp_path / "results")]
    ran = CliRunner().invoke(app, [*arguments, "--tokens", "4", "--proxy", "evidence", "--json"])
    assert ran.exit_code == 0, ran.output
    said = json.loads(ran.stdout)
    assert said["num_questions"] == 1
    assert -1 <= said["spearman"] <= 1
    assert said["eta"] >= 0
    assert said["bad_rows"] == ["line 2: no photo 'nowhere.png'"]
    assert newest(tmp_path / "results", "fidelity")["results"] == said, "as a report reads it"
