"""draft answers only what asks for looks, and only when sure."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic import concepts, naming, question, run, state, visual_tokens

from skipqa.config import DraftConfig
from skipqa.stages.draft import DraftAnswer, IdentityDrafter, cautious
from skipqa.trace import StageRecord
from skipqa.types import Draft

KINDS = concepts(
    ("espresso", ("coffee", "drink")), ("beagle", ("hound", "dog")), ("table", ("furniture",))
)


def drafted(
    text: str, overview: list[float], config: DraftConfig | None = None
) -> tuple[Draft, StageRecord]:
    low_res = dataclasses.replace(
        visual_tokens(2, len(KINDS), 0), overview=torch.tensor(overview, dtype=torch.float64)
    )
    stage = DraftAnswer(config or DraftConfig(), IdentityDrafter(naming(KINDS)))
    leaving, record = run(stage, state(question=question(text), low_res=low_res))
    return leaving.draft, record


@pytest.mark.parametrize(
    "text",
    [
        "What is this?",
        "what is that",
        "What are these?!",
        "What drink is this?",
        "What kind of drink is this?",
        "Which drinks are these?",
        "What is shown in the picture?",
        "What is this drink?",
    ],
)
def test_questions_for_looks_are_answered(text: str) -> None:
    answer, record = drafted(text, [0.95, 0.03, 0.02])
    assert answer.accepted
    assert answer.answer == "espresso"
    assert answer.confidence == pytest.approx(0.95)
    assert (record.kept, record.dropped) == (1, 0)
    assert record.why.startswith("answered")


@pytest.mark.parametrize(
    "text",
    [
        "How is this drink brewed?",
        "Where does it come from?",
        "What is this used for?",
        "Who invented this?",
        "How many cups are there?",
        "What dog is this?",  # the picture shows a drink
        "What spaceship is this?",  # no concept is one
    ],
)
def test_everything_else_goes_on(text: str) -> None:
    answer, record = drafted(text, [0.95, 0.03, 0.02])
    assert not answer.accepted
    assert answer.confidence < 0.1
    assert (record.kept, record.dropped) == (0, 1)
    assert record.why.startswith("passed on")


@given(st.floats(0, 1))
def test_threshold_is_strict(confidence: float) -> None:
    answer, record = drafted("What is this?", [confidence, 0.0, 0.0])
    assert answer.accepted == (confidence > 0.82)
    assert answer.confidence == confidence
    assert record.flops == 0


@given(st.floats(0.4, 1), st.floats(0.4, 1))
def test_a_higher_threshold_never_answers_more(one: float, other: float) -> None:
    low, high = sorted((one, other))
    overview = [0.7, 0.2, 0.1]
    strict, _ = drafted("What is this?", overview, DraftConfig(threshold=high))
    lenient, _ = drafted("What is this?", overview, DraftConfig(threshold=low))
    assert not strict.accepted or lenient == strict


def test_counting_has_a_threshold_of_its_own() -> None:
    """The training-free drafter never counts, so its confidence there is 0."""
    for text in ("How many cups are there?", "how much is in it"):
        assert "0.91" in drafted(text, [1.0, 0.0, 0.0])[1].why
        lenient = DraftConfig(threshold=0.99, counting_threshold=-1.0)
        assert drafted(text, [1.0, 0.0, 0.0], lenient)[0].accepted
        strict = DraftConfig(threshold=-1.0, counting_threshold=0.99)
        assert not drafted(text, [1.0, 0.0, 0.0], strict)[0].accepted
    assert "0.82" in drafted("What is this?", [1.0, 0.0, 0.0])[1].why


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_own_documents_only_ever_raise_a_threshold(one: float, counting: float, own: float) -> None:
    found = cautious(DraftConfig(one, counting, own))
    assert (found.threshold, found.counting_threshold) == (max(one, own), max(counting, own))
