from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.knowledge.chunk import MAX_TOKENS, SHORT, chunk, names
from skipqa.knowledge.sources import Document
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.vocabulary import Vocabulary

TOKENIZER = Vocabulary.default().tokenizer
WORDS = st.sampled_from(
    "a dog espresso Weimaraner, 3.14 — antidisestablishmentarianism\n Zürich 東京".split()
)


@given(st.lists(WORDS, max_size=300), st.sampled_from(["", "Lead: ", "x " * 80]))
def test_chunks_fit_cover_and_point_back(words: list[str], lead: str) -> None:
    text = " ".join(words)
    chunks = list(chunk([Document("d", "t", text, "s", lead)], TOKENIZER))
    room = MAX_TOKENS + (30 if len(lead) > 50 else 0)  # an overlong lead may pass its half
    assert [c.passage.id for c in chunks] == ["d", *(f"d#{n}" for n in range(1, len(chunks)))]
    covered = 0
    for c in chunks:
        assert len(TOKENIZER.encode(c.passage.text, add_special_tokens=False).ids) <= room
        assert c.passage.text == lead + text[c.start : c.end].strip()
        assert not text[covered : c.start].strip()  # nothing lies between two chunks
        covered = max(covered, c.end)
    assert not text[covered:].strip()


@given(st.lists(WORDS, max_size=300), st.sampled_from(["Weimaraner", "Dog (animal)", "Okapi"]))
def test_a_chunk_that_does_not_name_its_subject_begins_with_it(
    words: list[str], subject: str
) -> None:
    text = " ".join(words)
    for c in chunk([Document("d", subject, text, "s", subject=subject)], TOKENIZER):
        said = text[c.start : c.end].strip()
        named = names(said, subject)
        assert c.passage.text == (said if named else f"{subject}: {said}")
        assert len(TOKENIZER.encode(c.passage.text, add_special_tokens=False).ids) <= MAX_TOKENS


@pytest.mark.parametrize(
    ("text", "subject", "named"),
    [
        ("A giraffe eats leaves.", "Giraffe", True),
        ("Giraffes eat leaves.", "Giraffe", True),
        ("Categories of cats", "Cat", True),
        ("A category of its own", "Cat", False),
        ("Mercury is hot.", "Mercury (planet)", True),
        ("It is hot.", "Mercury (planet)", False),
        ("The U.S. flag", "U.S.", True),
        ("", "Cat", False),
    ],
)
def test_a_name_is_found_as_whole_words(text: str, subject: str, named: bool) -> None:
    assert names(text, subject) is named


@given(
    st.lists(st.lists(WORDS, min_size=1, max_size=130), min_size=1, max_size=6),
    st.sampled_from([" ", ". "]),
)
def test_prose_is_cut_between_paragraphs_and_sentences(
    paragraphs: list[list[str]], between: str
) -> None:
    """Nothing is lost, nothing is too long, and a sentence is only cut if it is."""
    text = "\n".join(between.join(words) for words in paragraphs)
    chunks = list(chunk([Document("d", "t", text, "s", prose=True)], TOKENIZER))
    covered = 0
    for c in chunks:
        assert tokens(c.passage.text) <= MAX_TOKENS
        assert c.passage.text == text[c.start : c.end].strip()
        assert not text[covered : c.start].strip()
        covered = max(covered, c.end)
        lines = [line for line in c.passage.text.split("\n") if line.strip()]
        assert all(tokens("\n".join(lines[:n])) < SHORT for n in range(1, len(lines)))
    assert not text[covered:].strip()


def test_a_note_is_a_passage_of_its_own_and_ends_with_a_sentence() -> None:
    cat = "The grey cat is called Minka and is eleven years old."
    heading, bike = "# Garage", "Our red bicycle belongs to Tomas Ostermann, who lives next door."
    diary = [
        f"On day {number} it rained again, and nobody came to see the garden."
        for number in "12345678"
    ]
    text = "\n".join([cat, heading, bike, " ".join(diary)])
    said = [c.passage.text for c in chunk([Document("d", "t", text, "s", prose=True)], TOKENIZER)]
    assert said[:2] == [cat, f"{heading}\n{bike}"]
    days = [[sentence for sentence in diary if sentence in one] for one in said[2:]]
    assert [" ".join(some) for some in days] == said[2:]
    for before, after in itertools.pairwise(days):
        assert before[-1] == after[0]  # a short sentence is in both


def tokens(text: str) -> int:
    return len(TOKENIZER.encode(text, add_special_tokens=False).ids)


def test_neighbours_share_about_twenty_tokens() -> None:
    text = " ".join(f"word{i}" for i in range(300))
    chunks = list(chunk([Document("d", "", text, "s")], TOKENIZER))
    for first, second in itertools.pairwise(chunks):
        shared = text[second.start : first.end]
        count = len(TOKENIZER.encode(shared, add_special_tokens=False).ids)
        assert 20 <= count <= 24  # a cut never falls inside a word


def test_a_word_longer_than_a_chunk_ends() -> None:
    chunks = list(
        chunk([Document("d", "", "b1" * 49, "s")] * 2, TOKENIZER, max_tokens=10, overlap=3)
    )
    assert 2 < len(chunks) < 100


def test_the_encoders_tokenizer_neither_pads_nor_truncates(encoder: LexicalEncoder) -> None:
    assert len(encoder.tokenizer.encode("dog " * 500, add_special_tokens=False).ids) == 500
