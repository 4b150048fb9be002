"""Questions in JSON Lines: how answers are written, and how they are compared."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.errors import UserError
from skipqa.tasks.example import Example
from skipqa.tasks.jsonl import JSONL, parse
from skipqa.tasks.okvqa import normalise

SCORES = st.floats(0, 1) | st.sampled_from([0, 1])


def example(answers: dict[str, Any]) -> Example:
    row = {"question_id": 1, "image": "1.png", "question": "What?", "answers": answers}
    return parse(json.dumps(row), 1)


def test_answers_need_not_be_normalised() -> None:
    found = example({"The Eiffel Tower": 1, "two dogs": 0.5})
    assert JSONL.score(found, "eiffel tower.") == 1
    assert JSONL.score(found, "The Eiffel Tower") == 1
    assert JSONL.score(found, "2 dogs") == 0.5
    assert JSONL.score(found, "Paris") == 0
    assert next(iter(found.answers)) == "The Eiffel Tower"  # shown as it was given


@pytest.mark.parametrize("first", [0.25, 1.0])
def test_of_two_spellings_the_best_score_counts(first: float) -> None:
    spellings = {"Dog": first, "a dog": 1.25 - first, "dog": 0.125}
    assert JSONL.score(example(spellings), "the dog") == 1.0


@given(st.dictionaries(st.text().filter(lambda t: normalise(t) == t), SCORES, min_size=1))
def test_normalised_answers_stay_as_they_are(answers: dict[str, float]) -> None:
    found = example(answers)
    assert list(found.answers.items()) == list(answers.items())
    for text, score in answers.items():
        assert JSONL.score(found, text) == score


@given(st.dictionaries(st.text(), SCORES, min_size=1))
def test_every_given_answer_scores_at_least_what_it_was_given(answers: dict[str, float]) -> None:
    found = example(answers)
    for text, score in answers.items():
        assert JSONL.score(found, text) >= score


@pytest.mark.parametrize("score", [True, False, "1", None, 1.5, -0.1, [1]])
def test_a_score_is_a_number_between_0_and_1(score: object) -> None:
    with pytest.raises(UserError, match=r"^line 1: the score of 'yes' must be a number"):
        example({"Yes": 1, "yes": score})
