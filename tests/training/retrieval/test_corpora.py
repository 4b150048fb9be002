"""Questions made from sentences: what stands in them is asked for in other words."""

from __future__ import annotations

from random import Random

import pytest

from skipqa.knowledge.sources.assertions import PHRASES
from skipqa.training.retrieval.corpora import (
    BY_PREDICATE,
    FOUND_IN,
    OF_THING,
    from_articles,
    from_conceptnet,
    understand,
)
from skipqa.types import Passage

STOVE = Passage(
    "conceptnet:stove",
    "stove",
    "A stove is used for cooking. A stove can heat a pot. You can find a stove in a kitchen.",
    "conceptnet",
)
MORE = Passage("conceptnet:stove:2", "stove", "A stove is used for heating.", "conceptnet")
RIVER = Passage(
    "wiki:nile", "Nile", "The Nile is a river. It floods fertile valleys every summer.", "wiki"
)


def seeded(seed: int) -> object:
    return lambda id: Random(f"{seed} {id}")


@pytest.mark.parametrize(
    ("sentence", "between", "said"),
    [
        ("A stove is used for cooking.", "is used for", "is used for cooking"),
        ("A stove can heat a pot.", "can", "can heat a pot"),
        ("A pot can be sold.", "can be", "can be sold"),
        ("You can find a stove in a kitchen.", FOUND_IN, "can be found in a kitchen"),
        ("A kite is a plaything.", "is", "is a plaything"),
    ],
)
def test_sentences_are_understood(sentence: str, between: str, said: str) -> None:
    assert understand(sentence) == (between, said)


def test_what_is_no_such_sentence_is_left_alone() -> None:
    assert understand("Cooking begins with shopping.") is None
    assert understand("Cooking can involve burning rice.") is None
    assert understand("No full stop is here") is None


def test_wordings_are_those_of_relations_that_conceptnet_has() -> None:
    between = {phrase for _, phrase, _ in PHRASES.values()} | {FOUND_IN}
    assert set(OF_THING) <= between
    assert all("{it}" in wording for some in OF_THING.values() for wording in some)
    assert all("{said}" in wording for wording in BY_PREDICATE)


def test_a_thing_is_asked_about_and_asked_for() -> None:
    found = [q for seed in range(60) for q in from_conceptnet([STOVE, MORE], seeded(seed))]  # type: ignore[arg-type]
    assert len(found) == 120
    of_thing = [query for query in found if len(query.gold) > 1]
    assert of_thing  # both passages say what it is used for
    assert all(query.name == "stove" for query in of_thing)
    assert not any("cooking" in query.text for query in of_thing)
    by_said = [query for query in found if "cooking" in query.text]
    assert by_said
    assert {query.name for query in by_said} == {"stove", ""}
    assert all("{" not in query.text for query in found)
    assert any("Where" in query.text for query in found)


def test_articles_are_asked_for_by_words_that_are_not_their_title() -> None:
    found = [q for seed in range(20) for q in from_articles([RIVER], seeded(seed))]  # type: ignore[arg-type]
    assert len({query.text for query in found}) > 5
    assert all(query.name == "Nile" and query.gold == ("wiki:nile",) for query in found)
    assert all("nile" not in query.text.lower() for query in found)
    assert any("valleys" in query.text for query in found)
    assert not list(from_articles([RIVER], lambda _: None))
