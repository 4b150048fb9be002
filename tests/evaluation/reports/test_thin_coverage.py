"""Which things to write about first: by hand-made numbers, from runs and from files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.errors import UserError
from skipqa.evaluation.reports.thin_coverage import (
    Mention,
    of_file,
    of_records,
    thin_things,
    write,
)

PASSAGES = {"vizsla": 0, "Ragdoll": 2, "dog": 90}


def count(name: str) -> int:
    return PASSAGES.get(name, 0)


def test_how_often_how_unsure_and_how_little_there_is() -> None:
    mentions = [
        Mention("vizsla", 1.0, 0.5),
        Mention("Vizsla", 0.5, 0.1),
        Mention("Ragdoll", 1.0, 0.9),
        Mention("dog", 1.0, 1.0),
    ]
    first, second = thin_things(mentions, count, covered=3)
    assert (first.name, first.asked, first.passages) == ("vizsla", 1.5, 0)
    assert first.expected_gain == pytest.approx(1.0 * 0.5 + 0.5 * 0.1)
    assert first.doubt == pytest.approx(0.55 / 1.5, abs=1e-4)
    assert (second.name, second.expected_gain) == ("Ragdoll", pytest.approx(0.3))


@given(
    st.lists(
        st.builds(
            Mention,
            st.sampled_from(["vizsla", "Ragdoll", "dog", "?", "new"]),
            st.floats(0, 1),
            st.floats(0, 1),
        )
    ),
    st.integers(1, 5),
)
def test_ranked_and_never_more_than_was_asked(mentions: list[Mention], covered: int) -> None:
    things = thin_things(mentions, count, covered)
    gains = [thing.expected_gain for thing in things]
    assert gains == sorted(gains, reverse=True)
    assert sum(gains) <= len(mentions)
    assert all(thing.passages < covered for thing in things)
    assert "dog" not in {thing.name for thing in things}


def test_records_of_a_run() -> None:
    records = [
        {"route": "full", "names": {"vizsla": 0.8, "dog": 0.2}, "confidence": 0.25},
        {"route": "full", "names": {"Ragdoll": 1.0}},
        {"route": "draft"},
    ]
    assert of_records(records) == [
        Mention("vizsla", 0.8, 0.75),
        Mention("dog", 0.2, 0.75),
        Mention("Ragdoll", 1.0, 1.0),
    ]
    assert of_records([]) == []
    with pytest.raises(UserError, match="run it again"):
        of_records([{"route": "full"}])


def test_names_and_questions_of_a_file(tmp_path: Path) -> None:
    text = tmp_path / "asked.txt"
    text.write_text("Ragdoll\n\nWho runs Acme Rockets?\n")
    assert [m.name for m in of_file(text, lambda _: True)] == ["Ragdoll", "Acme Rockets"]
    lines = tmp_path / "asked.jsonl"
    lines.write_text('{"name": "Ragdoll"}\n{"question": "Who runs Acme Rockets?"}\n')
    assert [m.name for m in of_file(lines, lambda _: True)] == ["Ragdoll", "Acme Rockets"]


@pytest.mark.parametrize("line", ["{}", "[]", "{", '{"name": 7}', '{"question": ""}'])
def test_a_line_that_says_nothing_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text(line + "\n")
    with pytest.raises((UserError, ValueError)) as refused:
        of_file(path, lambda _: True)
    assert isinstance(refused.value, UserError)


def test_written_for_people_and_programs(tmp_path: Path) -> None:
    things = thin_things([Mention('a "name", quoted', 1.0, 1.0)], count)
    write(things, tmp_path / "thin.jsonl")
    write(things, tmp_path / "thin.csv")
    (row,) = map(json.loads, (tmp_path / "thin.jsonl").read_text().splitlines())
    with (tmp_path / "thin.csv").open(newline="") as file:
        (same,) = csv.DictReader(file)
    assert row["name"] == same["name"] == 'a "name", quoted'
    assert float(same["expected_gain"]) == row["expected_gain"] == 1.0
    with pytest.raises(UserError, match=r"\.jsonl or \.csv"):
        write(things, tmp_path / "thin.txt")
