"""Statements become sentences that name what they are about and hold every value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.knowledge.triples import (
    MAX_CHARACTERS,
    MAX_VALUES,
    PASSAGE_WORDS,
    Statement,
    passages,
    sentence,
    sentences,
)

TEXTS = st.text(min_size=1, max_size=40)
STATEMENTS = st.builds(Statement, TEXTS, st.lists(TEXTS, max_size=12).map(tuple))


@pytest.mark.parametrize(
    ("property", "values", "said"),
    [
        ("country of origin", ("Hungary",), "The country of origin of Vizsla is Hungary."),
        ("colour", ("gold", "rust"), "The colour of Vizsla is gold and rust."),
        ("instance of", ("dog breed", "animal"), "Vizsla is a dog breed and an animal."),
        ("subclass of", ("pointer",), "Vizsla is a kind of pointer."),
        ("named after", ("a village",), "Vizsla is named after a village."),
        ("part of", ("FCI group 7",), "Vizsla is part of FCI group 7."),
        ("has use", ("hunting",), "Vizsla has use hunting."),
        ("family", (), ""),
        ("", ("x",), ""),
        ("colour", ("", " \n"), ""),
    ],
)
def test_a_statement_in_words(property: str, values: tuple[str, ...], said: str) -> None:
    assert sentence("Vizsla", Statement(property, values)) == said


def test_after_the_first_sentence_a_pronoun_is_enough() -> None:
    stated = [Statement("instance of", ("dog",)), Statement("colour", ("gold",))]
    assert list(sentences("Vizsla", stated)) == ["Vizsla is a dog.", "Its colour is gold."]
    assert list(sentences("Vizsla", stated, "a dog.", ["magyar vizsla"])) == [
        "Vizsla: a dog.",
        "It is also called magyar vizsla.",
        "It is a dog.",
        "Its colour is gold.",
    ]


@given(TEXTS, STATEMENTS, st.booleans())
def test_every_value_is_said_in_one_line(label: str, statement: Statement, named: bool) -> None:
    said = sentence(label, statement, named=named)
    values = [" ".join(v.split()) for v in statement.values[:MAX_VALUES]]
    stated = bool(label.split()) and bool(statement.property.split()) and any(values)
    assert bool(said) == stated
    assert "\n" not in said
    assert "\r" not in said
    if said:
        assert said.endswith(".")
        assert all(value in said for value in values)
        assert not named or " ".join(label.split()) in said


@given(TEXTS.filter(str.split), st.lists(STATEMENTS, max_size=8), st.text(max_size=60))
def test_passages_hold_all_sentences_and_are_short(
    label: str, statements: list[Statement], description: str
) -> None:
    found = passages(label, statements, description)
    name = " ".join(label.split())
    assert all(name in passage for passage in found)
    longest = max(
        (len(one.split()) for one in sentences(label, statements, description)), default=0
    )
    limit = max(PASSAGE_WORDS, longest + len(label.split()) + 3)
    assert all(len(passage.split()) <= limit for passage in found)
    for statement in statements:
        for value in statement.values[:MAX_VALUES]:
            plain = " ".join(value.split())
            if sentence(label, statement) and plain:
                assert any(plain in passage for passage in found)


def test_a_value_without_end_is_cut() -> None:
    assert len(sentence("x", Statement("text", ("a" * 10_000,)))) < MAX_CHARACTERS + 40
