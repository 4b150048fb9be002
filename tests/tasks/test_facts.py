"""Whether a passage states a fact: by its content words in any inflection, and never by less."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.tasks.facts import differ_in_number_alone, states

NOUNS = {  # singular -> plural
    "ladder": "ladders",
    "brush": "brushes",
    "fox": "foxes",
    "berry": "berries",
    "knife": "knives",
    "mouse": "mice",
    "child": "children",
    "fireman": "firemen",
    "lens": "lenses",
}
WORDS = st.sampled_from(
    [*NOUNS, *NOUNS.values(), "climbing", "sharpened", "7", "the", "is", "used", "for", "Paris"]
)
SENTENCES = st.lists(WORDS, max_size=8).map(" ".join)


@pytest.mark.parametrize(
    ("fact", "passage"),
    [
        ("a ladder is used for climbing", "Ladders are used to climb walls."),
        ("Ladders can reach roofs", "With a ladder a painter reaches the roof."),
        ("a kettle is used for boiling water", "kettle\na pot in which water is boiled"),
        ("spider belongs to the category of Arachnids", "Spiders are arachnids, not insects."),
        ("*Something you find at a harbour is ships", "a harbour shelters a ship from storms"),
        ("(spoon,/r/UsedFor,stirring)", "Stir the tea with a spoon."),
        ("a tricycle has three wheels", "tricycle: a cycle with 3 wheels"),
        ("a guitar has 6 strings", "Most guitars are strung with six strings."),
        ("lens is part of a camera", "the lens of the camera bends light"),
        ("People carry umbrellas", "A person carried an umbrella."),
        ("post is related to e-mail", "E-mail is faster than the post."),
        ("a baker's oven is hot", "The oven of a baker is very hot."),
    ],
)
def test_it_is_stated(fact: str, passage: str) -> None:
    assert states(fact, passage)
    assert states(fact, fact)


@pytest.mark.parametrize(
    ("fact", "passage"),
    [
        ("a ladder is used for climbing", "Ladders are made of wood."),
        ("a tricycle has three wheels", "a tricycle has 13 wheels"),
        ("a ladder is used for climbing", ""),
        ("People carry umbrellas", "Umbrellas carry a handle."),
        ("kings wear crowns", "k wears a crown"),  # a stem has three letters
        ("it is used for this", "it is used for this"),  # says nothing
    ],
)
def test_it_is_not_stated(fact: str, passage: str) -> None:
    assert not states(fact, passage)


@given(SENTENCES, SENTENCES, SENTENCES)
def test_more_words_take_nothing_back(fact: str, passage: str, more: str) -> None:
    if states(fact, passage):
        assert states(fact, f"{passage} {more}")
        assert states(fact, f"{more} {passage}")


@given(SENTENCES, SENTENCES)
def test_case_does_not_matter(fact: str, passage: str) -> None:
    assert states(fact.upper(), passage) == states(fact, passage.upper()) == states(fact, passage)


@given(st.lists(st.sampled_from(list(NOUNS)), min_size=1), st.data())
def test_singular_and_plural_are_the_same(nouns: list[str], data: st.DataObject) -> None:
    def some_plural() -> str:
        return " ".join(data.draw(st.sampled_from([noun, NOUNS[noun]])) for noun in nouns)

    assert states(some_plural(), some_plural())


@given(SENTENCES, st.sampled_from(["a", "the", "is used for", "can be", "are"]), SENTENCES)
def test_function_words_of_the_fact_do_not_matter(fact: str, word: str, passage: str) -> None:
    assert states(f"{word} {fact}", passage) == states(fact, passage)


@given(SENTENCES)
def test_a_fact_of_nothing_is_stated_by_nothing(passage: str) -> None:
    assert not states("it is for the", passage)


def test_answers_that_differ_in_number_alone() -> None:
    assert differ_in_number_alone("fire truck", "fire trucks")
    assert differ_in_number_alone("knives", "knife")
    assert not differ_in_number_alone("truck", "fire truck")
    assert not differ_in_number_alone("cat", "dog")
