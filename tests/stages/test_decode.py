"""decode reads the attended passages, the best last, and tells the decoder what is seen."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from synthetic import kept_tokens, question, retrieved_passage, verified, visual_tokens

from skipqa.config import BudgetConfig, DecodeConfig
from skipqa.pipeline import Answer, Pipeline
from skipqa.stages.budget import budget
from skipqa.stages.decode import decode, read_order
from skipqa.trace import StageRecord
from skipqa.types import Budget, Draft, Fused, Region


def fused(*mass: float) -> Fused:
    edges = torch.tensor([[m > 0 for m in mass]])
    return Fused(torch.zeros(1, 3), edges, mass)


def test_passages_that_no_token_attended_to_are_not_read() -> None:
    found = dataclasses.replace(verified([2, 2, 2], 0), scores=(0.9, 0.8, 0.7))
    assert read_order(found, fused(0.0, 3.0, 1.0)) == [1, 2]
    assert read_order(found, fused(0.0, 0.0, 0.0)) == []


def test_order_weighs_score_and_attention() -> None:
    found = dataclasses.replace(verified([2, 2], 0), scores=(0.6, 0.5))
    assert read_order(found, fused(5.0, 5.0)) == [0, 1]
    assert read_order(found, fused(1.0, 9.0)) == [1, 0]


def test_answer_is_read_from_the_fact(pipeline: Pipeline) -> None:
    texts = ("quork (noun): a soft cheese from the valleys of Zemblia", "zemble (noun): a flat hat")
    passages = tuple(retrieved_passage(row, text) for row, text in enumerate(texts))
    found = dataclasses.replace(verified([2, 2], 0), passages=passages, scores=(0.9, 0.5))
    names = [concept.name for concept in pipeline.backbone.concepts.entries]
    regions = (Region((0, 0, 1, 1), (0,), ((names.index("pizza"), 0.9),), 1.0),)
    record = StageRecord("decode")
    asked = question("Which land does this food come from?")
    text = decode(
        asked,
        Draft("", 0.0, "not asked"),
        Budget(1, 2),
        kept_tokens(2, [0], 0),
        regions,
        found,
        fused(2.0, 1.0),
        pipeline.backbone,
        DecodeConfig(),
        record,
    )
    assert "Zemblia" in text
    prompt: str = record.result
    assert prompt.endswith(f"Picture: pizza\nQuestion: {asked.text}\nAnswer:")
    assert prompt.index(texts[1]) < prompt.index(texts[0]), "the best fact stands nearest"
    assert record.flops > 0
    assert (record.kept, record.dropped) == (2, 0)


def test_answer_is_one_line_without_special_tokens(looked_up: Answer) -> None:
    assert "\n" not in looked_up.text
    assert "<|" not in looked_up.text
    assert looked_up.text == looked_up.text.strip()


@pytest.mark.parametrize(("wanted", "given"), [(3, 3), (64, 4)])
def test_budget_never_allows_more_tokens_than_there_are(wanted: int, given: int) -> None:
    record = StageRecord("budget")
    allowed = budget(visual_tokens(2, 3, 0), question(), 4, BudgetConfig(wanted, 6), record)
    assert (allowed.tokens, allowed.passages) == (given, 6)
    assert record.result is allowed
