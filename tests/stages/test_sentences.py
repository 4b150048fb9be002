"""Answers in sentences: what is quoted, and which passage a statement refers to."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic import kept_tokens, question, retrieved_passage, run, state, verified

from skipqa.backbones.backbone import Completion
from skipqa.config import ConfidenceConfig
from skipqa.pipeline import Pipeline
from skipqa.stages import decode
from skipqa.stages.decode import Decode
from skipqa.stages.readers import Reading
from skipqa.stages.sentences import (
    ClauseQuoter,
    SentenceReader,
    cited,
    clause_with,
    statements,
)
from skipqa.state import State
from skipqa.types import Budget, Decoded, Draft, Fused

FACTS = [
    "hat (noun): a cover for the head",
    "vizsla (noun): a Hungarian hunting dog with a reddish coat; similar to a Weimaraner",
]


class Saying:
    """A reader that always says the same."""

    max_passages = 2

    def __init__(self, text: str, grounded: bool | None) -> None:
        self.reading = Reading(Decoded(text, grounded=grounded), "", Completion(text, 1, 1, 0), "")

    def __call__(self, state: State, facts: list[str]) -> Reading:
        return self.reading


def entering() -> State:
    passages = tuple(retrieved_passage(row, text) for row, text in enumerate(reversed(FACTS)))
    found = dataclasses.replace(verified([2, 2], 0), passages=passages, scores=(0.9, 0.5))
    return state(
        question=question("Which land is this dog from?"),
        draft=Draft("", 0.0, "not asked"),
        budget=Budget(1, 2),
        kept=kept_tokens(2, [0], 0),
        regions=(),
        verified=found,
        fused=Fused(torch.zeros(1, 3), torch.ones(1, 2, dtype=torch.bool), (2.0, 1.0)),
    )


@pytest.mark.parametrize(
    ("answer", "clause"),
    [
        ("Hungarian", "a Hungarian hunting dog with a reddish coat"),
        ("hungarian", "a Hungarian hunting dog with a reddish coat"),
        ("weimaraner", "similar to a Weimaraner"),
        ("gun", ""),  # a part of a word is no word
        ("", ""),
    ],
)
def test_the_clause_of_an_answer(answer: str, clause: str) -> None:
    assert clause_with(answer, FACTS) == clause


def test_a_small_decoder_quotes_what_its_answer_rests_on() -> None:
    stage = Decode(ClauseQuoter(Saying("Hungarian", True)), ConfidenceConfig(), cite=True)
    leaving, _ = run(stage, entering())
    assert leaving.answer.text == "Hungarian: “a Hungarian hunting dog with a reddish coat” [1]"
    assert leaving.answer.grounded


def test_a_quotation_is_not_quoted_twice() -> None:
    quoted = "hunting dog with a reddish coat"
    stage = Decode(ClauseQuoter(Saying(quoted, True)), ConfidenceConfig(), cite=True)
    leaving, _ = run(stage, entering())
    assert leaving.answer.text == f"a Hungarian {quoted} [1]"


def test_a_guess_is_not_quoted() -> None:
    stage = Decode(ClauseQuoter(Saying("france", False)), ConfidenceConfig(), cite=True)
    leaving, _ = run(stage, entering())
    assert (leaving.answer.text, leaving.answer.grounded) == ("france", False)


@pytest.mark.parametrize(
    ("said", "text", "grounded"),
    [
        (
            "It is a reddish hunting dog. I like it.",
            "It is a reddish hunting dog. [1] I like it.",
            True,
        ),
        ("A hat covers the head.", "A hat covers the head. [2]", True),
        ("It comes from France.", "It comes from France.", False),
    ],
)
def test_statements_refer_to_the_passages_as_evidence_numbers_them(
    said: str, text: str, grounded: bool
) -> None:
    leaving, _ = run(Decode(Saying(said, None), ConfidenceConfig(), cite=True), entering())
    assert (leaving.answer.text, leaving.answer.grounded) == (text, grounded)


def test_a_title_or_an_initial_ends_no_statement() -> None:
    facts = ["roasted by Mrs. Oyelaran in Tampere", "composed by J. S. Bach"]
    said = "Mrs. Oyelaran roasted it. J. S. Bach composed it."
    assert cited(said, facts, [1, 2]) == "Mrs. Oyelaran roasted it. [1] J. S. Bach composed it. [2]"


@pytest.mark.parametrize(
    "text",
    [
        "It is rich in vitamin C. | Oranges have it.",
        "It boils at 78 °C. | Water boils later.",
        "He fought in World War I. | Hitler did, too.",
        "It is from World War I. | It was built in Berlin.",
        "He lives on Main St. | It is a street.",
        "She moved to Washington, D. C. | He stayed.",
        "It plays R&B. | Soul came later.",
        "Mrs. Oyelaran met Dr. No. | Prof. May did not.",
        "It is by J. R. R. Tolkien. | He wrote it.",
        "In 1898 H. G. Wells met George W. Bush, I. M. Pei and S. Korea.",
        "J. Robert Oppenheimer and the singer, R. Kelly, read F. Scott Fitzgerald.",
        "The St. Bernard on Mount St. Helens is from St. Gallen near Mt. Fuji.",
        "Drugs against E. coli exist.",
        "A Ph.D. student met J.P. Morgan in the U.S. state of Ohio. | The S.I. Units came later.",
    ],
)
def test_a_statement_ends_where_no_name_goes_on(text: str) -> None:
    assert statements(text.replace(" | ", " ")) == text.split(" | ")


@given(st.text(alphabet="abIC .!?", max_size=40))
def test_markers_are_all_that_is_added(text: str) -> None:
    found = cited(text, ["abc abba", "cab"], [2, 1])
    plain = found.replace(" [1]", "").replace(" [2]", "")
    assert plain.split() == text.split()
    assert cited(text, [], []).split() == text.split()


def test_the_style_chooses_the_reader(pipeline: Pipeline) -> None:
    for prompt, kind in (("chat", SentenceReader), ("short", ClauseQuoter)):
        changed = pipeline.with_config(decode={"prompt": prompt, "style": "sentence"})
        stage = decode.build(changed.parts)
        assert type(stage.reader) is kind
        assert stage.cite
    assert not decode.build(pipeline.parts).cite
