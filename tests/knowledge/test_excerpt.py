"""An excerpt has the sentences that the query is about, and names its subject."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skipqa.knowledge.excerpt import SENTENCE_END, excerpt, subject_of
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.types import Passage

ENCODER = LexicalEncoder.default()
HERON = Passage(
    "birds:heron",
    "Heron, wading bird",
    "It stands still for a long time. It eats fish and frogs; sometimes it takes a mouse. "
    "In winter it flies south. Its nest is a platform of sticks in a tall tree.",
    "birds",
)


def asked(text: str, passage: Passage = HERON, max_words: int = 12) -> str:
    return excerpt(passage, ENCODER.encode_terms(text), ENCODER, max_words)


def test_the_sentence_that_is_asked_for_is_chosen_and_says_of_what() -> None:
    assert asked("heron fish frogs") == "Heron: It eats fish and frogs;"
    assert asked("heron nest tree") == "Heron: Its nest is a platform of sticks in a tall tree."


def test_more_sentences_come_in_their_order_while_there_is_room() -> None:
    said = asked("winter frogs", max_words=11)
    assert said == "Heron: It eats fish and frogs; In winter it flies south."


def test_a_short_passage_is_read_whole() -> None:
    assert asked("winter", max_words=100) == HERON.text
    long = Passage("a", "A", "one sentence of many words that never ends and goes on", "x")
    assert asked("winter", long, max_words=3) == long.text


def test_the_subject_is_not_said_twice() -> None:
    passage = Passage("a", "Kettle", "A kettle boils water. " + "It may whistle. " * 9, "x")
    assert asked("water", passage, 5) == "A kettle boils water."


def test_naming_the_subject_is_no_merit() -> None:
    text = "A heron is a bird. It is grey. It is known for patience. Frogs fear it."
    said = asked("heron frogs", Passage("a", "heron", text, "x"), 6)
    assert said == "heron: Frogs fear it."


def test_subjects() -> None:
    assert subject_of("Luxembourg: Government > Flag") == "Luxembourg"
    assert subject_of("bag, traveling bag") == "bag"


words = st.sampled_from("fish nest water south tree frog winter boils".split())
sentences = st.lists(words, min_size=1, max_size=9).map(lambda some: " ".join(some) + ".")


@given(st.lists(sentences, min_size=1, max_size=8), words, st.integers(1, 30))
def test_it_is_made_of_whole_sentences_and_holds_the_best(
    said: list[str], word: str, max_words: int
) -> None:
    passage = Passage("p", "fish", " ".join(said), "test")
    found = asked(word, passage, max_words)
    inside = found.removeprefix("fish: ")
    assert all(sentence in passage.text for sentence in SENTENCE_END.split(inside))
    longest = max(len(sentence.split()) for sentence in SENTENCE_END.split(passage.text))
    assert len(inside.split()) <= max(max_words, longest)
    assert word not in passage.text or word in found
