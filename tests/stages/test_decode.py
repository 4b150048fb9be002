"""decode reads the attended passages, the best last, and tells the decoder what is seen."""

from __future__ import annotations

import dataclasses

import torch
from synthetic import kept_tokens, question, retrieved_passage, run, state, verified

from skipqa.config import DecodeConfig
from skipqa.pipeline import Answer, Pipeline
from skipqa.stages import decode
from skipqa.stages.decode import facts, read_order
from skipqa.stages.readers import InstructedReader, QuotingReader, ShortReader
from skipqa.types import Budget, Draft, Fused, Region


def fused(*mass: float) -> Fused:
    edges = torch.tensor([[m > 0 for m in mass]])
    return Fused(torch.zeros(1, 3), edges, mass)


def test_passages_that_no_token_attended_to_are_not_read() -> None:
    found = dataclasses.replace(verified([2, 2, 2], 0), scores=(0.9, 0.8, 0.7))
    assert read_order(found, fused(0.0, 3.0, 1.0)) == [1, 2]
    assert read_order(found, fused(0.0, 0.0, 0.0)) == []


def test_order_is_by_score_and_attention_together() -> None:
    found = dataclasses.replace(verified([2, 2], 0), scores=(0.6, 0.5))
    assert read_order(found, fused(5.0, 5.0)) == [0, 1]
    assert read_order(found, fused(1.0, 9.0)) == [1, 0]


def test_facts_are_one_line_each_and_the_best_is_last() -> None:
    passages = (retrieved_passage(0, "one\n\ntwo\tthree"), retrieved_passage(1, "four"))
    found = dataclasses.replace(verified([2, 2], 0), passages=passages)
    assert facts(found, [0, 1]) == ["four", "one two three"]
    assert facts(found, []) == []


def test_the_prompt_of_a_preset_chooses_the_reader(pipeline: Pipeline) -> None:
    for prompt, kind in (
        ("examples", QuotingReader),
        ("short", ShortReader),
        ("instructions", InstructedReader),
    ):
        changed = pipeline.with_config(decode={"prompt": prompt, "max_passages": 3})
        stage = decode.build(changed.parts)
        assert type(stage.reader) is kind
        assert stage.reader.max_passages == 3


def test_answer_is_read_from_the_fact(pipeline: Pipeline) -> None:
    texts = ("quork (noun): a soft cheese from the valleys of Zemblia", "zemble (noun): a flat hat")
    passages = tuple(retrieved_passage(row, text) for row, text in enumerate(texts))
    found = dataclasses.replace(verified([2, 2], 0), passages=passages, scores=(0.9, 0.5))
    names = [concept.name for concept in pipeline.backbone.concepts.entries]
    asked = question("Which land does this food come from?")
    entering = state(
        question=asked,
        draft=Draft("", 0.0, "not asked"),
        budget=Budget(1, 2),
        kept=kept_tokens(2, [0], 0),
        regions=(Region((0, 0, 1, 1), (0,), ((names.index("pizza"), 0.9),), 1.0),),
        verified=found,
        fused=fused(2.0, 1.0),
    )
    assert pipeline.config.decode == DecodeConfig()
    leaving, record = run(decode.build(pipeline.parts), entering)
    assert "Zemblia" in leaving.answer.text
    assert leaving.prompt.endswith(f"Picture: pizza\nQuestion: {asked.text}\nAnswer:")
    best, other = leaving.prompt.index(texts[0]), leaving.prompt.index(texts[1])
    assert other < best, "the best fact stands nearest"
    assert record.flops > 0
    assert (record.kept, record.dropped) == (2, 0)


def test_answer_is_one_line_without_special_tokens(looked_up: Answer) -> None:
    assert "\n" not in looked_up.text
    assert "<|" not in looked_up.text
    assert looked_up.text == looked_up.text.strip()
