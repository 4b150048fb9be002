"""What the long-tail benchmark computes from answers, on numbers made up by hand."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from skipqa.tasks.example import Example

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def longtail() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return importlib.import_module("longtail")


def example(number: int, category: str, relation: str, name: str = "x") -> Example:
    record = {"relation": relation, "name": name}
    return Example(number, "a.png", "?", category=category, record=record)


def test_popular_questions_count_by_the_strata_of_the_others(longtail: ModuleType) -> None:
    groups = {
        "longtail": [example(n, "cat", "origin") for n in range(3)] + [example(3, "dog", "life")],
        "popular": [example(4, "cat", "origin"), *(example(n, "dog", "life") for n in (5, 6))],
    }
    assert longtail.matched(groups).tolist() == [3.0, 0.5, 0.5]


def test_the_fraction_of_the_gap(longtail: ModuleType) -> None:
    scores = {
        ("longtail", "skip"): np.array([0.0] * 80 + [1.0] * 20),
        ("longtail", "skip-adr"): np.array([0.0] * 50 + [1.0] * 50),
        ("popular", "skip"): np.array([1.0, 0.0] * 40),
    }
    weights = np.array([1.6, 0.4] * 40)  # 80 % where popular questions are matched
    found = longtail.closed(scores, weights)
    assert found["gap"] == pytest.approx(0.6)
    assert found["fraction"] == pytest.approx(0.5)
    assert found["low"] < 0.5 < found["high"]


def test_the_detector_is_judged_on_entities_alone(longtail: ModuleType) -> None:
    groups = {
        "longtail": [example(1, "cat", "origin", "Ragdoll")],
        "popular": [example(2, "dog", "life", "Vizsla")],
    }
    records = {
        1: {
            "route": "full",
            "names": ["ragdoll", "vizsla", "espresso"],
            "unknown": ["ragdoll", "vizsla", "espresso"],
            "entity": "Ragdoll",
        },
        2: {"route": "full", "names": ["Vizsla", "ragdoll"], "unknown": [], "entity": "Vizsla"},
    }
    found = longtail.detector(groups, records, {"cat:ragdoll": "Ragdoll"})
    assert found["precision"] == found["recall"] == 0.5
    assert found["asked"]["others unknown"] == 1
    assert found["longtail questions whose thing was asked for"] == 1.0


def test_thin_things_are_ranked_without_labels(longtail: ModuleType) -> None:
    records = [
        {"names": ["ragdoll"], "skip confidence": 0.1, "skip": 0.0, "skip-adr": 1.0},
        {"names": ["manx"], "skip confidence": 0.9, "skip": 1.0, "skip-adr": 1.0},
        {"names": ["sphynx"], "skip confidence": None, "skip": 0.0, "skip-adr": 1.0},
        {"names": ["dog"], "skip confidence": 0.1, "skip": 1.0, "skip-adr": 0.0},
        {"names": []},
    ]
    found = longtail.prioritised(records, lambda name: 50 if name == "dog" else 0)
    assert found == {
        "things": 3,
        "gained": 2.0,
        "by_the_first_third": 1.0,
        "by_the_last_third": 0.0,
        "gained_by_others": -1.0,
    }


def test_facts_are_served_as_wikidata_has_them(longtail: ModuleType) -> None:
    triples = longtail.Triples()
    address = triples.add(["Ragdoll", "doll"], {"country of origin": ["United States"]})
    rows = list(triples.store().query(f"SELECT ?p ?o WHERE {{ <{address}> ?p ?o }}"))
    assert {row["o"].value for row in rows} == {"Ragdoll", "doll", "United States"}
