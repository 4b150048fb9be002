"""The words that stand for the thing: found in encode, left out of the keywords in retrieve."""

from __future__ import annotations

import dataclasses

import torch
from PIL import Image
from synthetic import run, state

from skipqa.config import RetrieveConfig
from skipqa.nn.concept_prior import ConceptPriorConfig, ConceptPriorHead
from skipqa.nn.span import SpanConfig, SpanHead
from skipqa.pipeline import Pipeline
from skipqa.stages import encode
from skipqa.stages.encode import NoSpan, TrainedSpan
from skipqa.stages.retrieve import ConceptQuerier
from skipqa.state import State
from skipqa.types import Question, Region

QUESTION = "Where do these animals live?"


class Marked(SpanHead):
    """Stands for a trained head: the fourth and fifth token, after [CLS]."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        logits = torch.full(states.shape[:-1], -1.0)
        logits[3:5] = 1.0
        return logits


def test_both_finders(pipeline: Pipeline) -> None:
    encoded = pipeline.backbone.encode_texts([QUESTION])
    assert NoSpan()(encoded) == (None, 0)
    found, flops = TrainedSpan(Marked(SpanConfig()))(encoded)
    assert found == (9, 22)
    assert flops > 0
    assert TrainedSpan(Marked(SpanConfig()))(dataclasses.replace(encoded, characters=()))[0] is None


def test_a_question_says_what_stands_for_its_thing(pipeline: Pipeline) -> None:
    head = ConceptPriorHead(ConceptPriorConfig()).requires_grad_(False)
    head.span = Marked(SpanConfig())
    system = pipeline.with_components(concept_prior=head)
    entering = State(Image.new("RGB", (64, 64)), f"  {QUESTION} ")
    leaving, record = run(encode.build(system.parts), entering)
    assert leaving.question.thing == "these animals"
    assert leaving.question.about("bear") == "Where do bear live?"
    assert "about 'these animals'" in record.why


def test_names_take_the_place_of_the_span(pipeline: Pipeline) -> None:
    region = Region((0.0, 0.0, 1.0, 1.0), (0,), ((0, 1.0),), 1.0)
    querier = ConceptQuerier(RetrieveConfig(), pipeline.backbone)
    written = []
    for span in (None, (9, 22)):
        states = torch.zeros(1, 384)
        asked = Question(QUESTION, states[0], ("animals", "live"), states, span=span)
        written += querier.write(state(question=asked, regions=(region,)))
    assert [query.keywords for query in written] == ["animals live", "live"]
    assert {query.question for query in written} == {QUESTION}
