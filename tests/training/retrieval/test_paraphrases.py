"""The table of paraphrases: complete, its halves apart, every blank known."""

from __future__ import annotations

from random import Random

import pytest

from skipqa.data.pocket_kb.facts import templates
from skipqa.training.retrieval.paraphrases import (
    RELATIONS_OF,
    Meaning,
    edited,
    held_out_wordings,
    of_field,
    say,
    table,
    train_wording,
    understand,
    wordings,
)

HALVES = ("train", "held_out")
RELATIONS = tuple(templates()["questions"])


@pytest.mark.parametrize("relation", RELATIONS)
def test_every_relation_has_held_out_wordings(relation: str) -> None:
    known = {*wordings("train", relation), *templates()["questions"][relation]}
    held_out = wordings("held_out", relation)
    assert len(known) >= 4
    assert len(held_out) >= 3
    assert known.isdisjoint(held_out)
    meaning = Meaning(relation, "dog", "origin", (("rank", "order"),))
    for half in HALVES:
        for wording in wordings(half, relation):
            assert "{" not in say(wording, meaning, half, Random(0))


@pytest.mark.parametrize("part", ["things", "countries", "names"])
def test_halves_share_no_reference_and_no_name(part: str) -> None:
    one, other = ({x for some in table()[half][part].values() for x in some} for half in HALVES)
    assert one.isdisjoint(other)
    assert set(table()["train"]["names"]) >= set(templates()["names"])
    assert all(set(table()[half]["countries"]) == set(templates()["countries"]) for half in HALVES)


@pytest.mark.parametrize("field", [*table()["fields"], *RELATIONS_OF])
def test_fields_have_both_halves(field: str) -> None:
    one, other = (of_field(half, field) for half in HALVES)
    assert len(one) >= 3
    assert len(other) >= 3
    assert set(one).isdisjoint(other)
    assert all("{country}" in wording for wording in (*one, *other))


def test_templates_are_understood() -> None:
    asked = "Which city is the capital of the home country of this breed of cat?"
    assert understand(asked, "capital", "cat") == Meaning(
        "capital", "cat", "origin", (("noun", "cat"),)
    )
    asked = "Which sport is played with this piece of equipment?"
    known = understand(asked, "game", "thing")
    assert known is not None
    assert known.blanks == (("noun", "piece of equipment"),)
    assert understand("Is there a bus in the picture?", "presence", "scene") is not None
    assert understand("What breed is this dog?", "name", "dog") is not None
    assert understand("How does this fruit taste?", "description", "grocery") is None


def test_the_same_question_in_other_words() -> None:
    asked = "What is the currency of the country with this flag?", "currency", "country"
    some = {train_wording(*asked, Random(seed)) for seed in range(300)}
    assert len(some) > 100
    assert some.isdisjoint(held_out_wordings(*asked))
    assert len(held_out_wordings(*asked)) >= 3
    assert held_out_wordings("How does this fruit taste?", "description", "grocery") == [
        "Is it sour or sweet?"
    ]
    assert held_out_wordings("Is it hairy?", "description", "grocery") == []


def test_edits_change_little() -> None:
    text = "What is the colour of this dog in the picture?"
    some = {edited(text, Random(seed)) for seed in range(300)}
    assert text in some
    assert any(one.startswith("What's") for one in some)
    assert all("dog" in one and len(one) < len(text) + 40 for one in some)
