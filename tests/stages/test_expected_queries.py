"""retrieve with a trained expectation: a region asks for what the question is about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from synthetic import question

from skipqa import components
from skipqa.components import Components
from skipqa.config import RetrieveConfig
from skipqa.nn.concept_prior import ConceptPriorConfig, ConceptPriorHead
from skipqa.pipeline import Pipeline
from skipqa.stages.encode import encode
from skipqa.stages.retrieve import region_query, retrieve
from skipqa.trace import StageRecord
from skipqa.types import Budget, ConceptPrior, Region

NAMES_ONLY = RetrieveConfig(definition_weight=0.0)


def region_of(pipeline: Pipeline, **probs: float) -> Region:
    names = [concept.name for concept in pipeline.backbone.concepts.entries]
    concepts = tuple((names.index(name), prob) for name, prob in probs.items())
    return Region((0.0, 0.0, 0.5, 0.5), (0, 1), concepts, 1.0)


def test_evidence_times_expectation_is_shared_out_whole(pipeline: Pipeline) -> None:
    concepts, encoder = pipeline.backbone.concepts, pipeline.index.encoder
    faint = region_of(pipeline, espresso=0.02, beagle=0.01)
    expected = torch.ones(len(concepts))
    expected[faint.concepts[1][0]] = 6.0
    put = replace(question("…"), concept_prior=ConceptPrior(expected, 1.0))
    asked = encoder.encode_query("pressure")
    query = region_query(faint, put, concepts, encoder.encode_terms, NAMES_ONLY, asked)
    weight = dict(zip(query.terms.tolist(), query.weights.tolist(), strict=True))

    def prob(name: str) -> float:
        alone = encoder.encode_terms(name)
        return weight[int(alone.terms[0])] / float(alone.weights[0])

    np.testing.assert_allclose([prob("espresso"), prob("beagle")], [0.25, 0.75], rtol=1e-4)
    np.testing.assert_allclose(prob("pressure"), NAMES_ONLY.question_weight, rtol=1e-5)


def test_a_region_that_shows_nothing_asks_the_question_alone(pipeline: Pipeline) -> None:
    concepts, encoder = pipeline.backbone.concepts, pipeline.index.encoder
    put = replace(
        question("…", "pressure"), concept_prior=ConceptPrior(torch.ones(len(concepts)), 0.0)
    )
    nothing = region_of(pipeline, espresso=0.0)
    query = region_query(nothing, put, concepts, encoder.encode_terms, NAMES_ONLY)
    assert query.terms.tolist() == encoder.encode_terms("pressure").terms.tolist()


def test_the_question_has_it_from_the_components(pipeline: Pipeline, tmp_path: Path) -> None:
    made = Components(concept_prior=ConceptPriorHead(ConceptPriorConfig()))
    components.save(made, tmp_path, preset="pocket")
    read = components.load(tmp_path, preset="pocket").concept_prior
    assert read is not None
    flops = []
    for concept_prior in (None, read):
        record = StageRecord("encode")
        picture, config = Image.new("RGB", (64, 64)), pipeline.config.encode
        _, asked = encode(picture, "Brewed?", pipeline.backbone, config, record, concept_prior)
        assert (asked.concept_prior is None) == (concept_prior is None)
        flops.append(record.flops)
    assert asked.concept_prior is not None
    assert len(asked.concept_prior.weights) == len(pipeline.backbone.concepts)
    assert flops[0] < flops[1]
    found = retrieve(
        [region_of(pipeline, espresso=0.02)],
        asked,
        Budget(1, 4),
        pipeline.backbone.concepts,
        pipeline.index,
        RetrieveConfig(),
        StageRecord("retrieve"),
    )
    assert "espresso" in [p.passage.title for p in found.passages]
