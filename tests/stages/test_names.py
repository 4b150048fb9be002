"""Names in questions and of what regions show."""

from __future__ import annotations

from dataclasses import replace

import pytest
import synthetic
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.stages.names import MAX_CHARACTERS, MAX_WORDS, named_in, shown_things
from skipqa.types import ConceptPrior, Region

TITLES = {"describe", "labrador", "boston", "painting", "of"}


@pytest.mark.parametrize(
    ("question", "names"),
    [
        (
            "Who founded the Acme Rocket Company in Springfield?",
            ["Acme Rocket Company", "Springfield"],
        ),
        ("Which Boston Terrier won?", ["Boston Terrier"]),
        ("Describe this dog.", []),
        ("Labradors are from where?", []),
        ("Zyxxy comes from where?", ["Zyxxy"]),
        ("Paintings by Ilya Repin: which?", ["Ilya Repin"]),
        ("WHAT IS THIS?", []),
        ("what is a ragdoll?", []),
        (
            "What did Ludwig van Beethoven's sister, Maria, do?",
            ["Ludwig van Beethoven", "Maria"],
        ),
        ("Is this the Bay of Bengal or not?", ["Bay of Bengal"]),
        ('Who wrote "The old man and the sea"?', ["The old man and the sea"]),
        ("Did I. M. Pei or Dr. Who build it?", ["I. M. Pei", "Dr. Who"]),
        ("When was the Boeing 747 built?", ["Boeing 747"]),
        ("May I ask? I think so", []),
        ("Where is São Paulo’s mayor?", ["São Paulo"]),
        ("In 1999 what was it?", []),
        ("", []),
        ("?!\n\t\x00", []),
        ('Is it "\ud800 x" or Acme\ud800Rocket?', ["Acme", "Rocket"]),
    ],
)
def test_names_by_rules(question: str, names: list[str]) -> None:
    assert named_in(question, TITLES.__contains__) == names


@given(st.text(max_size=200), st.booleans())
def test_a_name_is_short_and_stands_in_the_question(question: str, known: bool) -> None:
    names = named_in(question, lambda _: known)
    assert len(names) == len(set(names))
    for name in names:
        assert name == name.strip()
        assert 1 < len(name) <= MAX_CHARACTERS
        assert len(name.split()) <= MAX_WORDS
        assert all(word in question for word in name.split())


@given(st.lists(st.sampled_from(["Acme", "Rocket", "the", "of", "is", "747", "a"]), max_size=8))
def test_what_is_a_title_is_no_name_for_its_capital_alone(words: list[str]) -> None:
    """With more titles known there are fewer and shorter names."""
    question = " ".join(words)
    most = named_in(question, lambda _: False)
    for name in named_in(question, lambda _: True):
        assert any(name in longer for longer in most)


CONCEPTS = synthetic.concepts(
    ("vizsla", ("dog",)), ("Vizsla", ("dog",)), ("pointer", ("dog",)), ("cup", ("thing",))
)


def region(*concepts: tuple[int, float]) -> Region:
    return Region((0.0, 0.0, 1.0, 1.0), (0,), concepts, 1.0)


def test_a_thing_is_named_once_for_the_surest_region() -> None:
    state = synthetic.state(
        question=synthetic.question(),
        regions=(region((0, 0.4), (3, 0.05)), region((1, 0.7), (2, 0.2))),
    )
    found = shown_things(state, CONCEPTS, 0.1)
    assert found == [(("Vizsla",), 0.7), (("pointer",), 0.2)]


def test_a_prior_turns_probabilities_into_the_posterior() -> None:
    asked = synthetic.question()
    prior = ConceptPrior(torch.tensor([0.0, 0.0, 0.0, 1.0]), 3.0)
    about_things = replace(asked, concept_prior=prior)
    state = synthetic.state(question=about_things, regions=(region((0, 0.9), (3, 0.1)),))
    (found,) = shown_things(state, CONCEPTS, 0.1)
    assert found == (("cup",), 1.0)
