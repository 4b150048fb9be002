"""Questions in JSON Lines: how answers are written, and how they are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.errors import UserError
from skipqa.tasks.example import Example
from skipqa.tasks.jsonl import JSONL, example_of, parse, read
from skipqa.tasks.okvqa import normalise
from skipqa.tasks.photos import Photos

COUNTS = st.dictionaries(st.text(), st.integers(0, 10), min_size=1).filter(
    lambda answers: max(answers.values()) > 1
)
SCORES = st.floats(0, 1) | st.sampled_from([0, 1])


def example(answers: dict[str, Any]) -> Example:
    row = {"question_id": 1, "image": "1.png", "question": "What?", "answers": answers}
    return example_of(parse(json.dumps(row), 1), "line 1")


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


def test_counts_of_people_score_a_third_each() -> None:
    found = example({"The brunch": 2, "brunch": 1, "Lunch": 2, "tea": 1, "supper": 0})
    assert found.answers == pytest.approx(
        {"brunch": 1.0, "lunch": 2 / 3, "tea": 1 / 3, "supper": 0.0}
    )
    assert JSONL.score(found, "a brunch.") == 1
    assert JSONL.score(example({"brown": 10}), "brown") == 1


@given(COUNTS)
def test_a_count_is_worth_at_least_its_own_third(answers: dict[str, int]) -> None:
    found = example(answers)
    assert all(0 <= score <= 1 for score in found.answers.values())
    for text, count in answers.items():
        assert JSONL.score(found, text) >= min(1, count / 3)


@pytest.mark.parametrize("answers", [{"a": 2, "b": 0.5}, {"a": 2, "b": "1"}, {"a": 2, "b": True}])
def test_counts_and_scores_do_not_mix(answers: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^line 1: the score of '[ab]' must be a number"):
        example(answers)


def test_a_negative_count_is_no_count() -> None:
    with pytest.raises(UserError, match=r"^line 1: the count of 'b' must be a whole number"):
        example({"a": 2, "b": -1})


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    (folder / "a.png").touch()
    whole = [{"image": "a.png", "question": "What?", **row} for row in rows]
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in whole))
    return folder / "q.jsonl"


def test_in_a_file_of_counts_a_one_is_one_person(tmp_path: Path) -> None:
    path = written(tmp_path, {"answers": {"red": 1, "blue": 1}}, {"answers": {"red": 10}})
    examples, bad = read(path, Photos(tmp_path))
    assert bad == []
    assert examples[0].answers == pytest.approx({"red": 1 / 3, "blue": 1 / 3})
    assert examples[1].answers == {"red": 1.0}

    soft = written(tmp_path, {"answers": {"red": 1, "blue": 1}}, {"answers": {"red": 0.6}})
    examples, _ = read(soft, Photos(tmp_path))
    assert examples[0].answers == {"red": 1, "blue": 1}


def test_without_an_id_the_line_is_the_id(tmp_path: Path) -> None:
    path = written(tmp_path, {"answer": "red"}, {"answer": "blue", "question_id": "b"})
    examples, bad = read(path, Photos(tmp_path))
    assert ([example.id for example in examples], bad) == ([1, "b"], [])


def test_type_and_fact_of_a_row(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"answer": "red", "type": "color", "fact": "Poppies are red"},
        {"answer": "red", "fact": ["Poppies are red"]},
    )
    (found,), bad = read(path, Photos(tmp_path))
    assert (found.type, found.fact) == ("color", "Poppies are red")
    assert bad == ["line 2: 'fact' must be a sentence"]
