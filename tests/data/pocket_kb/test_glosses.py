"""What is read out of a definition, and what is left alone."""

from __future__ import annotations

import pytest

from skipqa.data.pocket_kb.glosses import facts, noun_of


@pytest.mark.parametrize(
    ("gloss", "noun", "relation", "answers"),
    [
        ("a machine for washing dishes", "appliance", "used_for", ("washing dishes",)),
        ("a car used to push snow", "vehicle", "used_for", ("push snow", "pushing snow")),
        ("a bottle for holding wine", "container", "holds", ("wine",)),
        ("a shop where books are sold", "shop", "sold", ("books",)),
        ("light hollow ball used in playing table tennis", "object", "game", ("table tennis",)),
        ("a spiked helmet worn by German soldiers", "garment", "worn_by", ("German soldiers",)),
        ("an elephant native to Africa having ears", "animal", "lives", ("Africa",)),
        ("small Eurasian finch", "bird", "lives", ("Eurasian", "Eurasia")),
        ("bird; feeds chiefly on carrion", "bird", "eats", ("carrion",)),
        ("any fungus of the family Boletaceae", "mushroom", "taxon family", ("Boletaceae",)),
        ("a spoon made of wood", "container", "made_of", ("wood",)),
    ],
)  # fmt: skip
def test_states(gloss: str, noun: str, relation: str, answers: tuple[str, ...]) -> None:
    assert dict(facts(gloss, noun, ()))[relation] == answers


@pytest.mark.parametrize(
    ("gloss", "noun"),
    [
        ("an open receptacle for holding or displaying or serving articles", "container"),
        ("sailing vessel used in former times", "vehicle"),
        ("a safety belt used in a car or plane", "object"),
        ("wild swine; introduced in United States", "animal"),
        ("a spring that discharges hot water", "object"),
    ],
)
def test_says_nothing(gloss: str, noun: str) -> None:
    assert list(facts(gloss, noun, ())) == []


def test_a_kind_must_stand_in_the_definition() -> None:
    assert dict(facts("small finch", "bird", ("finch",))) == {"kind": ("finch",)}
    assert dict(facts("small thing", "bird", ("finch",))) == {}
    assert dict(facts("a small bird", "bird", ("bird",))) == {}


def test_the_nearest_noun_is_taken() -> None:
    assert noun_of(frozenset({"n01503061", "n00015388"})) == "bird"
    assert noun_of(frozenset()) == "object"
