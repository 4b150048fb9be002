"""The table of concepts by plain name: what titles of passages are matched with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skipqa.backbones.concepts import SENSES, Concept, Concepts, common_things, plain_name
from skipqa.pipeline import Pipeline


def table(*names: tuple[str, ...]) -> Concepts:
    entries = tuple(Concept("", some, "", (("a kind",),)) for some in names)
    return Concepts(entries, torch.zeros(len(entries), 2))


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("Maine Coon", "maine coon"),
        ("jack-o'-lantern", "jack o lantern"),
        ("  St. Bernard ", "st bernard"),
        ("flag of the Gambia", "gambia"),
        ("flag of Mali", "mali"),
        ("…", ""),
    ],
)
def test_plain_names(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_names_that_differ_in_spelling_only_are_one() -> None:
    found = table(("Maine Coon", "coon cat"), ("cup",), ("maine-coon",)).by_plain_name
    assert found == {"maine coon": [0, 2], "coon cat": [0], "cup": [1]}


def test_a_name_twice_in_one_concept_counts_twice() -> None:
    """As do the two names of a flag, "flag of mali" and "mali"."""
    assert table(("flag of mali", "mali")).by_plain_name == {"mali": [0, 0]}


@given(st.lists(st.lists(st.text(max_size=8), min_size=1, max_size=3).map(tuple), max_size=6))
def test_every_name_is_found_and_nothing_else(names: list[tuple[str, ...]]) -> None:
    found = table(*names).by_plain_name
    listed = [(name, number) for name, numbers in found.items() for number in numbers]
    expected = [(plain_name(name), number) for number, some in enumerate(names) for name in some]
    assert sorted(listed) == sorted(expected)


def test_shipped_concepts(trained_pipeline: Pipeline) -> None:
    """Kinds are in `called` only."""
    concepts = trained_pipeline.backbone.concepts
    for number, concept in enumerate(concepts.entries):
        for name in concept.names:
            assert number in concepts.by_plain_name[plain_name(name)]
    assert sum(map(len, concepts.by_plain_name.values())) == sum(
        len(concept.names) for concept in concepts.entries
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bear", "animal"),
        ("mouse", "device"),
        ("kite", "plaything"),
        ("keyboard", "device"),
        ("tie", "garment"),
        ("skis", "runner"),
        ("cell phone", "telephone"),
        ("bowl", "container"),
    ],
)
def test_common_things_are_what_a_photo_shows(home: Path, name: str, kind: str) -> None:
    (found,) = common_things([name]).values()
    assert found.name == name
    assert found.gloss
    assert any(kind in names for names in found.kinds)


def test_synonyms_of_a_common_thing_mean_it_by_themselves(home: Path) -> None:
    found = common_things(["airplane", "bicycle", "skis", "no such thing", *SENSES])
    assert found["airplane"].names == ("airplane", "aeroplane", "plane")
    assert found["bicycle"].names == ("bicycle",)  # "wheel" and "cycle" are mostly others
    assert "no such thing" not in found
    assert found.keys() >= SENSES.keys()
