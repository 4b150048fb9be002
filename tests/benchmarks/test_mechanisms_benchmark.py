"""What the benchmark of mechanisms changes, before anything is read."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from skipqa.types import Passage, RetrievedPassage, Verified

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def mechanisms() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return importlib.import_module("mechanisms")


def told(*texts: str) -> Verified:
    passages = tuple(
        RetrievedPassage(n, Passage(f"test:{n}", "", "whole", "test"), 1.0, 0, 1.0, excerpt=text)
        for n, text in enumerate(texts)
    )
    return Verified(passages, (1.0,) * len(texts), (), torch.zeros(0), ())


def test_a_fact_is_edited_where_it_stands(mechanisms: ModuleType) -> None:
    before = told("It comes from Hungary.", "Hungarys are many.", "Tea.")
    after, target = mechanisms.edited(before, {"hungary": 1.0, "hun": 0.5}, "peru")
    assert [one.text for one in after.passages] == [
        "It comes from peru.",
        "Hungarys are many.",
        "Tea.",
    ]
    assert target == "peru"
    assert mechanisms.edited(before, {"china": 1.0}, "peru") is None


def test_an_untrained_reader_is_refused_where_it_would_read_nothing(
    mechanisms: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["mechanisms.py", "--pocket-kb", "nowhere", "--untrained-reader"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit):
        mechanisms.main()
    assert "give --passages fused or fused+best" in capsys.readouterr().err


def test_the_other_answer_is_wrong_here(mechanisms: ModuleType) -> None:
    from skipqa.tasks.example import Example

    one = Example(1, "", "?", {"a": 1.0}, category="dog")
    asked = [one, replace(one, answers={"a": 1.0, "b": 1.0}), replace(one, category="cat")]
    assert mechanisms.other_answer(one, asked) == "b"
    assert mechanisms.other_answer(one, asked[:1]) == "something else"
