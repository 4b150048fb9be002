"""Content words and base forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.language import STOP_WORDS, base_forms, content_words, words_of


def test_words_keep_hyphens_apostrophes_and_accents() -> None:
    assert words_of("What's a well-known CAFÉ’s crème?") == [
        "what's", "a", "well-known", "café’s", "crème",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("How is this drink brewed?", ("drink", "brewed")),
        ("What is this?", ()),
        ("Which country is this dog from, and which dog?", ("country", "dog")),
        ("", ()),
        ("42 !?", ()),
    ],
)
def test_content_words(text: str, words: tuple[str, ...]) -> None:
    assert content_words(text) == words


@given(st.text(max_size=200))
def test_content_words_are_unique_words_of_the_text(text: str) -> None:
    found = content_words(text)
    assert len(set(found)) == len(found)
    assert set(found) <= set(words_of(text))
    assert not set(found) & STOP_WORDS
    assert content_words(" ".join(found)) == found


@pytest.mark.parametrize(
    ("plural", "singular"),
    [
        ("dogs", "dog"),
        ("berries", "berry"),
        ("knives", "knife"),
        ("wolves", "wolf"),
        ("glasses", "glass"),
        ("horses", "horse"),
        ("boxes", "box"),
        ("quizzes", "quizz"),
        ("watches", "watch"),
        ("brushes", "brush"),
        ("women", "woman"),
        ("mice", "mouse"),
        ("geese", "goose"),
        ("leaves", "leaf"),
    ],
)
def test_plurals(plural: str, singular: str) -> None:
    assert singular in base_forms(plural)


@pytest.mark.parametrize("word", ["glass", "grass", "is", "as", "dog", ""])
def test_what_is_no_plural_stays_alone(word: str) -> None:
    assert base_forms(word) == {word}


@given(st.text(max_size=30))
def test_a_word_is_always_one_of_its_forms(word: str) -> None:
    assert word in base_forms(word)
    assert "" not in base_forms(word) or not word
