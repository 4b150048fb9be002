"""Trained components in the pipeline: both variants, any subset, and refusal of a wrong one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from skipqa import components
from skipqa.components import Components
from skipqa.errors import UserError
from skipqa.nn import checkpoint
from skipqa.nn.budget import (
    BudgetController,
    DifficultyBudgetConfig,
    DiscreteBudgetConfig,
    build_budget,
)
from skipqa.nn.drafter import Drafter, DrafterConfig
from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.nn.region_query import RegionQueryConfig, build_region_query
from skipqa.nn.saliency import SaliencyConfig, build_saliency
from skipqa.nn.verifier import Verifier, VerifierConfig
from skipqa.pipeline import Pipeline

WIDTH, HEADS, FEATURES, LOW_RES = 384, 12, 1_280, 64
QUESTION = "How is this drink brewed?"
Variant = Literal["A", "B"]


def controller(variant: Variant) -> BudgetController:
    kind = DiscreteBudgetConfig if variant == "A" else DifficultyBudgetConfig
    return build_budget(kind(WIDTH, WIDTH))


def untrained(variant: Variant, concepts: int) -> Components:
    torch.manual_seed(2026)
    drafter = DrafterConfig(LOW_RES, FEATURES, WIDTH, ("yes", "no"), width=32, layers=1, ffn=64)
    return Components(
        drafter=Drafter(drafter).eval(),
        budget=controller(variant),
        saliency=build_saliency(SaliencyConfig(WIDTH, variant)),
        region_query=build_region_query(RegionQueryConfig(FEATURES, concepts, WIDTH)),
        verifier=Verifier(VerifierConfig(WIDTH, WIDTH)),
        fusion=BipartiteFusion(FusionConfig(WIDTH, WIDTH, HEADS, variant)).requires_grad_(False),
    )


def with_components(pipeline: Pipeline, made: Components) -> Pipeline:
    return Pipeline(replace(pipeline.parts, components=made))


@pytest.mark.parametrize("variant", ["A", "B"])
def test_a_folder_of_components_answers_like_those_in_memory(
    pipeline: Pipeline, photo: Path, tmp_path: Path, variant: Variant
) -> None:
    made = untrained(variant, len(pipeline.backbone.concepts))
    components.save(made, tmp_path, preset="pocket")
    read = components.load(tmp_path, preset="pocket")
    one, other = (
        with_components(pipeline, c).answer(photo, QUESTION, fast_path=False) for c in (made, read)
    )
    assert one.text == other.text
    assert one.evidence == other.evidence
    assert len(one.state.kept.positions) == one.state.budget.tokens
    assert one.trace["fuse"].flops > 0
    assert one.trace["draft"].flops > 0


def test_easy_questions_are_not_looked_up(pipeline: Pipeline, photo: Path) -> None:
    """SKIP-NR: a difficulty below 0.15 closes retrieval, and the decoder answers alone."""
    easy = controller("B")
    with torch.no_grad():
        easy.difficulty.weight.zero_()
        easy.difficulty.bias.fill_(-4.0)
    answer = with_components(pipeline, Components(budget=easy)).answer(photo, QUESTION)
    assert answer.state.budget.passages == 0
    assert answer.evidence == ()
    assert answer.trace["fuse"].kept == 0
    assert answer.text


def test_a_confident_drafter_takes_the_fast_path(pipeline: Pipeline, photo: Path) -> None:
    made = untrained("A", len(pipeline.backbone.concepts))
    assert made.drafter is not None
    with torch.no_grad():
        made.drafter.to_answers.weight.zero_()
        made.drafter.to_answers.bias.copy_(torch.tensor([9.0, 0.0]))
    answer = with_components(pipeline, made).answer(photo, QUESTION)
    assert (answer.text, answer.route) == ("yes", "draft")


def test_another_presets_components_are_refused(tmp_path: Path) -> None:
    components.save(Components(verifier=Verifier(VerifierConfig(8, 8))), tmp_path, preset="pocket")
    with pytest.raises(UserError, match="trained for preset 'pocket' and cannot serve"):
        components.load(tmp_path, preset="submission-7b")


def test_the_delta_of_the_vision_encoder_is_found(tmp_path: Path) -> None:
    path = tmp_path / "vision.safetensors"
    weights = {"stem.bias": torch.ones(32)}
    checkpoint.save_tensors(weights, path, component="vision", preset="pocket")
    found = components.load(tmp_path, preset="pocket")
    assert found.vision == path
    assert (found.question, found.reader, found.drafter) == (None, None, None)
    with pytest.raises(UserError, match="trained for preset 'pocket' and cannot serve"):
        components.load(tmp_path, preset="submission-7b")


def test_a_delta_of_another_network_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vision.safetensors"
    checkpoint.save_tensors({"x": torch.ones(1)}, path, component="reader", preset="pocket")
    with pytest.raises(UserError, match=r"vision.safetensors holds a reader, not a vision"):
        components.load(tmp_path, preset="pocket")


def test_an_empty_or_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds none of"):
        components.load(tmp_path, preset="pocket")
    with pytest.raises(UserError, match="no folder of components"):
        components.load(tmp_path / "nowhere", preset="pocket")


def test_a_region_query_of_an_older_kind_is_refused(tmp_path: Path) -> None:
    """It read the mean meaning of a region and started from nothing."""
    older = {"visual_width": 384, "question_width": 384, "variant": "A", "hidden": 64}
    path = tmp_path / "region_query.safetensors"
    checkpoint.save_tensors(
        {"of_region.bias": torch.zeros(64)},
        path,
        component="SparseRegionQuery",
        preset="pocket",
        config=older,
    )
    with pytest.raises(UserError) as refused:
        components.load(tmp_path, preset="pocket")
    expected = f"{path} holds no RegionQueryConfig of this version: it has visual_width"
    assert str(refused.value) == expected


def test_a_region_query_for_other_concepts_is_refused(pipeline: Pipeline) -> None:
    query = build_region_query(RegionQueryConfig(FEATURES, 7, WIDTH, hidden=8))
    needed = f"{len(pipeline.backbone.concepts):,}"
    with pytest.raises(UserError, match=f"region_query.* for 7 concepts, .* has {needed}"):
        pipeline.with_components(region_query=query)
