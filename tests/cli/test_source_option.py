"""--source on the command line, and the report of thin coverage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.sparql_endpoint import Triples, serving
from skipqa.knowledge.on_demand.cache import Cache

if TYPE_CHECKING:
    from conftest import Command

QUESTION = "How is this drink brewed?"


@pytest.fixture(autouse=True)
def _ready(home: Path) -> None:
    """Everything is set up."""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("wikidatta", "did you mean wikidata"),
        ("sparql:ftp://example.org", "http:// or https://"),
        ("json:https://example.org/{name}", "text= or its facts="),
        ("index:nowhere", "no index at nowhere"),
    ],
)
def test_a_bad_source_is_one_line(skipqa: Command, photo: Path, source: str, said: str) -> None:
    outcome = skipqa("ask", photo, QUESTION, "--source", source)
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


def test_skip_adr_needs_a_source(skipqa: Command, photo: Path, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    row = {"question_id": 1, "image": photo.name, "question": QUESTION, "answer": "steam"}
    questions.write_text(json.dumps(row) + "\n")
    asked = ("--questions", questions, "--images", photo.parent, "--out", tmp_path / "runs")
    outcome = skipqa("eval", "vqa", *asked, "--system", "skip-adr", "--untrained")
    assert outcome.code == 2
    assert "--source" in outcome.err


def test_evaluated_with_a_source_and_then_reported(
    skipqa: Command, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions, runs = tmp_path / "questions.jsonl", tmp_path / "runs"
    row = {"question_id": 1, "image": photo.name, "question": QUESTION, "answer": "steam"}
    questions.write_text(json.dumps(row) + "\n")
    monkeypatch.setattr(Cache, "default", lambda: Cache(tmp_path / "told.sqlite"))
    facts = Triples()
    facts.add(["espresso"], {"brewing method": ["steam"]})
    with serving(facts.store()) as url:
        outcome = skipqa(
            *("eval", "vqa", "--questions", questions, "--images", photo.parent, "--out", runs),
            *("--system", "skip", "--system", "skip-adr", "--source", f"sparql:{url}"),
            *("--untrained", "--json", "--set", "consult.deadline_ms=60000"),
        )
    assert outcome.code == 0, outcome.err
    told = {
        system: json.loads((runs / system / "predictions.jsonl").read_text())
        for system in ("skip", "skip-adr")
    }
    assert json.loads((runs / "skip-adr" / "run.json").read_text())["sources"] == [f"sparql:{url}"]
    assert not any(id.startswith("127.0.0.1") for id in told["skip"]["retrieved"])
    assert any(id.startswith("127.0.0.1") for id in told["skip-adr"]["retrieved"])
    assert "espresso" in told["skip"]["names"]

    thin = tmp_path / "thin.csv"
    outcome = skipqa("report", "coverage", runs / "skip", "--out", thin, "--json")
    assert outcome.code == 0, outcome.err
    names = [row["name"] for row in json.loads(outcome.out)]
    assert "espresso" in names
    assert thin.read_text().startswith("name,asked,doubt,passages,expected_gain\n")


def test_coverage_of_a_list_of_names(skipqa: Command, tmp_path: Path) -> None:
    (tmp_path / "asked.txt").write_text("Ragdoll\nWho runs Acme Rockets?\ndog\n")
    outcome = skipqa("report", "coverage", tmp_path / "asked.txt")
    assert outcome.code == 0, outcome.err
    assert "Ragdoll" in outcome.out
    assert "Acme Rockets" in outcome.out
    missing = skipqa("report", "coverage", tmp_path / "none.txt")
    assert (missing.code, missing.err.count("\n")) == (2, 1)
