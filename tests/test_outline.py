"""The pathway as plain data: it can be written as JSON and says what the state says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skipqa.answer import Answer
from skipqa.config import PRESETS
from skipqa.outline import dense_cost
from skipqa.pipeline import Pipeline
from skipqa.text_only import text_only


@pytest.mark.parametrize("kind", ["looked_up", "trained_looked_up", "drafted"])
def test_it_is_json_and_has_every_part(kind: str, request: pytest.FixtureRequest) -> None:
    answer: Answer = request.getfixturevalue(kind)
    outline = json.loads(json.dumps(answer.outline(), allow_nan=False))
    assert outline["answer"] == answer.text
    assert outline["flops"] == answer.trace.flops
    assert [stage["name"] for stage in outline["stages"]] == [s.name for s in answer.trace.stages]
    state = answer.state
    assert outline["image"] == {"width": state.image.width, "height": state.image.height}
    if answer.route == "draft":
        assert outline["regions"] == outline["passages"] == outline["edges"] == []
        assert outline["budget"] is None
        return
    assert outline["tokens"]["kept"] == state.kept.positions.tolist()
    assert len(outline["tokens"]["saliency"]) == outline["tokens"]["total"]
    assert all(0 <= score <= 1 for score in outline["tokens"]["saliency"])
    regions = outline["regions"]
    assert sorted(t for region in regions for t in region["tokens"]) == outline["tokens"]["kept"]


@pytest.mark.parametrize("kind", ["looked_up", "trained_looked_up"])
def test_passages_are_numbered_kept_ones_first(kind: str, request: pytest.FixtureRequest) -> None:
    answer: Answer = request.getfixturevalue(kind)
    passages, verified = answer.outline()["passages"], answer.state.verified
    assert [p["number"] for p in passages] == list(range(1, len(passages) + 1))
    verdicts = [p["verdict"] for p in passages]
    kept, rejected = len(verified.passages), len(verified.rejected)
    assert verdicts == ["kept"] * kept + ["rejected"] * rejected
    threshold = answer.parts.config.verify.threshold if answer.parts else 0.0
    for passage in passages:
        good = passage["verification"] >= round(threshold, 4)
        if passage["verdict"] == "rejected" and not good:
            assert passage["reason"].startswith("below")
        assert not passage["cited"] or passage["verdict"] == "kept"
    assert [p["number"] - 1 for p in passages if p["cited"]] == sorted(answer.state.answer.read)
    assert sum(p["attention"] for p in passages) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("kind", ["looked_up", "trained_looked_up"])
def test_attention_of_the_edges_is_that_of_the_passages(
    kind: str, request: pytest.FixtureRequest
) -> None:
    outline = request.getfixturevalue(kind).outline()
    for passage in outline["passages"]:
        received = sum(
            edge["attention"] for edge in outline["edges"] if edge["passage"] == passage["number"]
        )
        assert received == pytest.approx(passage["attention"], abs=1e-3)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_dense_cost_is_that_of_the_counted_system(preset: str) -> None:
    cost = dense_cost(preset)
    assert cost["flops"] == sum(stage["flops"] for stage in cost["stages"]) > 1e9
    assert dense_cost("no such preset")["stages"] == []


def test_a_question_without_an_image_is_looked_up_by_its_words(
    trained_pipeline: Pipeline,
) -> None:
    answer = text_only(trained_pipeline).answer(None, "What is the capital of France?")
    assert answer.text == "Paris"
    outline = json.loads(json.dumps(answer.outline()))
    assert outline["image"] is None
    assert outline["tokens"] == {"grid": 0, "total": 0, "kept": [], "saliency": []}
    assert any("France" in p["text"] for p in outline["passages"] if p["cited"])
    assert "<svg" not in answer._repr_html_()


def test_with_an_image_the_question_needs_one(pipeline: Pipeline, photo: Path) -> None:
    with pytest.raises(ValueError, match="no image"):
        pipeline.answer(None, "What is this?")
