"""What the reader is told to see: the thing asked about, or the whole image."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from skipqa.config import DecodeConfig
from skipqa.pipeline import Answer, Pipeline
from skipqa.stages.readers import names_asked_about
from skipqa.state import State
from skipqa.types import ConceptPrior

NAME = DecodeConfig(region_words=1)


@pytest.fixture
def state(trained_looked_up: Answer) -> State:
    state = trained_looked_up.state
    prior = ConceptPrior(torch.ones_like(state.tokens.overview), 2.0)
    question = replace(state.question, concept_prior=prior)
    return state.add(question=question)


def test_the_best_names_of_that_region(trained_pipeline: Pipeline, state: State) -> None:
    concepts = trained_pipeline.backbone.concepts
    salient = max(state.regions, key=lambda region: region.saliency)
    names = [concepts[concept].name for concept, _ in salient.concepts]
    for most in (1, 3):
        found = names_asked_about(state, trained_pipeline.backbone, DecodeConfig(region_words=most))
        assert found == names[:most]


def test_the_prior_has_a_say(trained_pipeline: Pipeline, state: State) -> None:
    salient = max(state.regions, key=lambda region: region.saliency)
    last, _ = salient.concepts[-1]
    weights = torch.zeros_like(state.tokens.overview)
    weights[last] = 1.0
    question = replace(state.question, concept_prior=ConceptPrior(weights, 5.0))
    found = names_asked_about(state.add(question=question), trained_pipeline.backbone, NAME)
    assert found == [trained_pipeline.backbone.concepts[last].name]


def test_none_for_a_question_about_the_whole_image(
    trained_pipeline: Pipeline, state: State
) -> None:
    backbone = trained_pipeline.backbone
    prior = ConceptPrior(torch.ones_like(state.tokens.overview), 0.5)
    scene = state.add(question=replace(state.question, concept_prior=prior))
    unknown = state.add(question=replace(state.question, concept_prior=None))
    assert names_asked_about(state, backbone, DecodeConfig()) == []
    assert names_asked_about(scene, backbone, NAME) == []
    assert names_asked_about(unknown, backbone, NAME) == []
