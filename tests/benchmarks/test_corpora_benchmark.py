"""What the benchmark of corpora counts as a hit."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def corpora(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("corpora")


def test_an_answer_is_found_as_whole_words(corpora: ModuleType) -> None:
    assert corpora.contains(("ice cream", "x"), "They sell Ice-Cream.")
    assert not corpora.contains(("ice",), "They sell rice.")


def test_rates_count_by_rank_and_against_another_question(corpora: ModuleType) -> None:
    asked = [corpora.Asked("q", ("tea",)), corpora.Asked("r", ("milk",))]
    tea, milk, other = (corpora.Found(s, t) for s, t in ((3, "tea"), (2, "milk"), (1, "no")))
    lists = [corpora.in_turns([[other], [other, tea]]), corpora.pooled([[other], [milk]])]
    found = corpora.rates(asked, lists, corpora.contains, (1, 4))
    assert found == {
        "questions": 2, "first_1": 0.5, "first_4": 1.0, "control_1": 0.0, "control_4": 0.0,
    }  # fmt: skip
    assert lists[0] == [other, other, tea]
