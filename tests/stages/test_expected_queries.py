"""retrieve with a trained expectation: a region asks for what the question is about."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from synthetic import question

from skipqa import components
from skipqa.components import Components
from skipqa.config import RetrieveConfig
from skipqa.nn.expectation import Expectation, ExpectationConfig
from skipqa.pipeline import Pipeline
from skipqa.stages.retrieve import region_query, retrieve
from skipqa.trace import StageRecord
from skipqa.types import Budget, Region

NAMES_ONLY = RetrieveConfig(definition_weight=0.0)


def region_of(pipeline: Pipeline, **shares: float) -> Region:
    names = [concept.name for concept in pipeline.backbone.concepts.entries]
    concepts = tuple((names.index(name), share) for name, share in shares.items())
    return Region((0.0, 0.0, 0.5, 0.5), (0, 1), concepts, 1.0)


def test_evidence_times_expectation_is_shared_out_whole(pipeline: Pipeline) -> None:
    concepts, encoder = pipeline.backbone.concepts, pipeline.index.encoder
    faint = region_of(pipeline, espresso=0.02, beagle=0.01)
    expected = torch.ones(len(concepts))
    expected[faint.concepts[1][0]] = 6.0
    asked = encoder.encode_query("pressure")
    query = region_query(
        faint, question("…"), concepts, encoder.encode_terms, NAMES_ONLY, asked, expected
    )
    weight = dict(zip(query.terms.tolist(), query.weights.tolist(), strict=True))

    def share(name: str) -> float:
        alone = encoder.encode_terms(name)
        return weight[int(alone.terms[0])] / float(alone.weights[0])

    np.testing.assert_allclose([share("espresso"), share("beagle")], [0.25, 0.75], rtol=1e-4)
    np.testing.assert_allclose(share("pressure"), NAMES_ONLY.question_weight, rtol=1e-5)


def test_a_region_that_shows_nothing_asks_the_question_alone(pipeline: Pipeline) -> None:
    concepts, encoder = pipeline.backbone.concepts, pipeline.index.encoder
    query = region_query(
        region_of(pipeline, espresso=0.0),
        question("…", "pressure"),
        concepts,
        encoder.encode_terms,
        NAMES_ONLY,
        None,
        torch.ones(len(concepts)),
    )
    assert query.terms.tolist() == encoder.encode_terms("pressure").terms.tolist()


def test_the_stage_takes_it_from_the_components(pipeline: Pipeline, tmp_path: Path) -> None:
    made = Components(expectation=Expectation(ExpectationConfig()))
    components.save(made, tmp_path, preset="pocket")
    read = components.load(tmp_path, preset="pocket").expectation
    assert read is not None
    asked = dataclasses.replace(question("…", "brewed"), embedding=torch.ones(384))
    record = StageRecord("retrieve")
    found = retrieve(
        [region_of(pipeline, espresso=0.02)],
        asked,
        Budget(1, 4),
        pipeline.backbone.concepts,
        pipeline.index,
        RetrieveConfig(),
        record,
        expectation=read,
    )
    assert "espresso" in [p.passage.title for p in found.passages]
    assert record.flops > 0
