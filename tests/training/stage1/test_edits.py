"""Passages that say something else than is true, and what is right then."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from skipqa.training.example import TrainExample
from skipqa.training.stage1.edits import OtherAnswers, edited, holds_answer

ASKED = TrainExample(
    1, "a.jpg", "Where is it from?", {"hungary": 1.0}, category="dog, origin", hops=(("It.",),)
)


def other(answer: str, category: str = "dog, origin", *, named: bool = True) -> TrainExample:
    hops = (("It.",),) if named else ()
    return TrainExample(2, "b.jpg", "?", {answer: 1.0, "x": 0.3}, category=category, hops=hops)


def test_every_right_answer_gives_way() -> None:
    told = ["The vizsla is from Hungary; hungary it is.", "Hungarys are many."]
    assert edited(told, {"hungary": 1.0}, "peru") == [
        "The vizsla is from peru; peru it is.",
        "Hungarys are many.",
    ]


def test_the_longest_of_several_answers_gives_way_first() -> None:
    assert edited(["It has vitamin C."], {"c": 1.0, "vitamin c": 1.0}, "iron") == ["It has iron."]


def test_nothing_is_edited_where_no_answer_stands_or_one_is_left() -> None:
    assert edited(["It is from Peru."], {"hungary": 1.0}, "chile") is None
    assert edited(["It has 3 legs, three in all."], {"3": 1.0}, "5") is None  # three is 3


@given(st.text("ab .", max_size=20), st.sampled_from(("a", "ab", "b a")))
def test_no_right_answer_is_left(text: str, answer: str) -> None:
    found = edited([text], {answer: 1.0}, "other")
    assert found is None or not holds_answer(found[0], {answer: 1.0})


def test_another_answer_is_of_a_question_of_its_kind() -> None:
    known = [other("peru"), other("hungary"), other("4", "dog, life"), other("tea", named=False)]
    others = OtherAnswers(known)
    drawn = {others.draw(ASKED, random.Random(n)) for n in range(30)}
    assert drawn == {"peru"}
    assert OtherAnswers([]).draw(ASKED, random.Random(0)) is None
    assert others.draw(other("x", named=False), random.Random(0)) is None
