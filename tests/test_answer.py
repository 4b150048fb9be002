"""An answer says how certain it is, what it rests on, and how it came about."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.answer import Answer
from skipqa.confidence import answer_features, draft_features, of_answer, of_draft
from skipqa.config import ConfidenceConfig
from skipqa.pipeline import Pipeline
from skipqa.state import NotRun, State
from skipqa.trace import Trace
from skipqa.types import Decoded, Draft, Route

probs = st.floats(0, 1)


def answered(decoded: Decoded, route: Route = "full") -> Answer:
    return Answer(State("nowhere.png", "Why?").add(answer=decoded), route, Trace())


@pytest.mark.parametrize(
    ("decoded", "route", "said"),
    [
        (Decoded("tea", grounded=True, confidence=0.42), "full", "42% sure; a passage says so"),
        (Decoded("tea", grounded=True), "full", "a passage says so"),
        (Decoded("tea", grounded=False), "full", "a guess: no passage says so"),
        (Decoded("tea"), "full", "whether a passage says so was not measured"),
        (
            Decoded("tea", grounded=False, confidence=0.9),
            "draft",
            "90% sure; from the image alone, nothing was looked up",
        ),
    ],
)
def test_certainty_in_words(decoded: Decoded, route: Route, said: str) -> None:
    answer = answered(decoded, route)
    assert answer.certainty == said
    assert (answer.text, answer.confidence, answer.grounded) == (
        *("tea", decoded.confidence, decoded.grounded),
    )


def test_what_did_not_run_is_empty() -> None:
    answer = answered(Decoded("tea"))
    assert answer.evidence == ()
    with pytest.raises(NotRun, match=r"^encode has not run$"):
        _ = answer.num_tokens
    with pytest.raises(NotRun, match=r"^decode has not run$"):
        _ = Answer(State("nowhere.png", "Why?"), "full", Trace()).text


def test_both_routes_say_what_they_rest_on(looked_up: Answer, drafted: Answer) -> None:
    assert looked_up.grounded is True  # quoted
    assert drafted.grounded is False
    for answer in (looked_up, drafted):
        found = json.loads(json.dumps(answer.as_dict()))
        assert (found["confidence"], found["grounded"]) == (answer.confidence, answer.grounded)


class TestConfidence:
    CURVES = ConfidenceConfig(drafted=(0.5, 2.0), looked_up=(1.0, 0.25, 1.5, 0.5))
    EVEN = Draft("cup", 0.5, "")  # log-odds of 0

    @given(probs)
    def test_without_a_curve_nothing_is_claimed(self, prob: float) -> None:
        none = ConfidenceConfig()
        assert of_draft(Draft("tea", prob, ""), none) is None
        assert of_answer(Decoded("tea", log_prob=-1.0, grounded=True), self.EVEN, none) is None

    def test_without_a_log_probability_neither(self) -> None:
        assert of_answer(Decoded("tea", grounded=True), self.EVEN, self.CURVES) is None

    @given(probs, probs)
    def test_a_surer_draft_is_never_less_probable(self, one: float, other: float) -> None:
        low, high = (of_draft(Draft("", p, ""), self.CURVES) for p in sorted((one, other)))
        assert low is not None
        assert high is not None
        assert 0 < low <= high < 1

    @given(st.floats(-30, 0))
    def test_an_answer_is_on_its_curve_and_grounding_helps(self, log_prob: float) -> None:
        grounded, guessed = (
            of_answer(Decoded("tea", log_prob=log_prob, grounded=g), self.EVEN, self.CURVES)
            for g in (True, False)
        )
        assert guessed == pytest.approx(1 / (1 + math.exp(-(1.0 + 0.25 * log_prob))))
        assert grounded == pytest.approx(1 / (1 + math.exp(-(2.5 + 0.25 * log_prob))))

    def test_identity_curve_gives_back_the_drafters_confidence(self) -> None:
        plain = ConfidenceConfig(drafted=(0.0, 1.0))
        assert of_draft(Draft("tea", 0.3, ""), plain) == pytest.approx(0.3)
        assert draft_features(0.5) == (0.0,)

    def test_what_was_not_measured_counts_as_not_grounded(self) -> None:
        unknown, guessed = (
            of_answer(Decoded("tea", log_prob=-1.0, grounded=g), self.EVEN, self.CURVES)
            for g in (None, False)
        )
        assert unknown == guessed
        assert answer_features(-1.0, False, 0.5) == (-1.0, 0.0, 0.0)

    def test_a_curve_of_another_length_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="zip"):
            of_draft(Draft("tea", 0.3, ""), ConfidenceConfig(drafted=(0.0, 1.0, 2.0)))

    def test_the_pipeline_applies_the_settings(self, pipeline: Pipeline, drafted: Answer) -> None:
        system = pipeline.with_config(confidence={"drafted": [0.0, 1.0]})
        answer = system.answer(drafted.state.image, drafted.state.text)
        assert answer.confidence == pytest.approx(drafted.state.draft.confidence, abs=1e-6)
        assert drafted.confidence is None
