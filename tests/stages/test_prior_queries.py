"""A trained concept prior: encode estimates it, and regions ask for what the question is about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from synthetic import question, run, state

from skipqa import components
from skipqa.components import Components
from skipqa.config import RetrieveConfig
from skipqa.knowledge import Index
from skipqa.knowledge.text_query import encode_queries
from skipqa.nn import concept_prior, span
from skipqa.nn.concept_prior import ConceptPriorConfig, ConceptPriorHead
from skipqa.pipeline import Pipeline
from skipqa.stages import encode, retrieve
from skipqa.stages.encode import NoPrior, TrainedPrior
from skipqa.stages.retrieve import ConceptQuerier
from skipqa.state import State
from skipqa.types import Budget, ConceptPrior, Question, Region, SparseVector

NAMES_ONLY = RetrieveConfig(definition_weight=0.0)


def region_of(pipeline: Pipeline, **probs: float) -> Region:
    names = [concept.name for concept in pipeline.backbone.concepts.entries]
    concepts = tuple((names.index(name), prob) for name, prob in probs.items())
    return Region((0.0, 0.0, 0.5, 0.5), (0, 1), concepts, 1.0)


def query(pipeline: Pipeline, asked: Question, region: Region) -> SparseVector:
    querier = ConceptQuerier(NAMES_ONLY, pipeline.backbone)
    written = querier.write(state(question=asked, regions=(region,)))
    ((vector,),), _ = encode_queries(written, [wordnet(pipeline).encoder])
    return vector


def wordnet(pipeline: Pipeline) -> Index:
    return pipeline.library.indexes["wordnet"]


def test_evidence_times_prior_sums_to_one(pipeline: Pipeline) -> None:
    encoder = wordnet(pipeline).encoder
    faint = region_of(pipeline, espresso=0.02, beagle=0.01)
    weights = torch.ones(len(pipeline.backbone.concepts))
    weights[faint.concepts[1][0]] = 6.0
    asked = replace(question("…", "pressure"), concept_prior=ConceptPrior(weights, 1.0))
    written = query(pipeline, asked, faint)
    weight = dict(zip(written.terms.tolist(), written.weights.tolist(), strict=True))

    def prob(name: str) -> float:
        alone = encoder.encode_terms(name)
        return weight[int(alone.terms[0])] / float(alone.weights[0])

    np.testing.assert_allclose([prob("espresso"), prob("beagle")], [0.25, 0.75], rtol=1e-4)
    np.testing.assert_allclose(prob("pressure"), NAMES_ONLY.question_weight, rtol=1e-5)


def test_a_region_that_shows_nothing_asks_the_question_alone(pipeline: Pipeline) -> None:
    flat = ConceptPrior(torch.ones(len(pipeline.backbone.concepts)), 0.0)
    asked = replace(question("…", "pressure"), concept_prior=flat)
    written = query(pipeline, asked, region_of(pipeline, espresso=0.0))
    expected = wordnet(pipeline).encoder.encode_terms("pressure")
    assert written.terms.tolist() == expected.terms.tolist()


def test_the_question_has_it_from_the_components(pipeline: Pipeline, tmp_path: Path) -> None:
    made = Components(concept_prior=ConceptPriorHead(ConceptPriorConfig()))
    components.save(made, tmp_path, preset="pocket")
    read = components.load(tmp_path, preset="pocket").concept_prior
    assert read is not None
    flops, entering = [], State(Image.new("RGB", (64, 64)), "Brewed?")
    for head in (None, read):
        system = pipeline.with_components(concept_prior=head)
        leaving, record = run(encode.build(system.parts), entering)
        assert (leaving.question.concept_prior is None) == (head is None)
        flops.append(record.flops)
    prior = leaving.question.concept_prior
    assert prior is not None
    num_concepts = len(pipeline.backbone.concepts)
    assert len(prior.weights) == num_concepts
    spent = concept_prior.flops(read.config, num_concepts)
    spent += span.flops(read.span.config, len(leaving.question.states))
    assert flops[1] - flops[0] == spent
    asking = leaving.add(regions=(region_of(pipeline, espresso=0.02),), budget=Budget(1, 4))
    found, _ = run(retrieve.build(pipeline.parts), asking)
    assert "espresso" in [p.passage.title for p in found.retrieved.passages]


def test_both_estimators_of_the_prior(pipeline: Pipeline) -> None:
    torch.manual_seed(0)
    head = ConceptPriorHead(ConceptPriorConfig()).requires_grad_(False)
    embedding = pipeline.backbone.encode_texts(["Which breed is it?"]).embeddings[0]
    assert NoPrior()(embedding) == (None, 0)
    estimate = TrainedPrior(head, pipeline.backbone)
    prior, flops = estimate(embedding)
    assert prior is not None
    assert flops == concept_prior.flops(head.config, len(pipeline.backbone.concepts))
    expected = head.prior(embedding, head.of_concept(pipeline.backbone.concepts.embeddings))
    assert torch.equal(prior.weights, expected.weights)
    assert prior.information == pytest.approx(expected.information)
    again, _ = estimate(embedding)
    assert again is not None
    assert torch.equal(again.weights, prior.weights)
