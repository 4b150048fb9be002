"""What `skipqa setup` says of the corpora, with small ones in place of the real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skipqa.backbones.presets.desk import Desk
from skipqa.errors import UserError
from skipqa.knowledge import default
from skipqa.knowledge.sources.tables import JsonLines

if TYPE_CHECKING:
    from conftest import Command


class Corpus:
    passages = 1

    def __init__(self, path: Path, licence: str, reason: str = "") -> None:
        self.path, self.licence, self.reason = path, licence, reason
        path.write_text(json.dumps({"text": f"{path.stem} are small"}) + "\n")

    def open(self) -> JsonLines:
        return JsonLines(self.path)

    def fetch(self, report: Callable[[str], None]) -> Path:
        report(f"downloading {self.path.stem}")
        if self.reason:
            raise UserError(self.reason)
        return self.path


@pytest.fixture
def corpora(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Corpus]:
    """A cache that has the models and no indexes."""
    for part in ("assets", "converted"):
        (tmp_path / part).symlink_to(home / part)
    made = {
        "birds": Corpus(tmp_path / "birds.jsonl", "public domain"),
        "drinks": Corpus(tmp_path / "drinks.jsonl", "GPL", "no connection: install drinks"),
    }
    monkeypatch.setattr(default, "BUILT_IN", made)
    monkeypatch.setattr(default, "DEFAULT_SOURCES", tuple(made))
    monkeypatch.setattr(default, "OPTIONAL", ("drinks",))
    monkeypatch.setenv("SKIPQA_HOME", str(tmp_path))
    return made


def test_passages_size_and_licence_are_told_before_and_after(
    skipqa: Command, corpora: dict[str, Corpus]
) -> None:
    corpora["drinks"].reason = ""
    told = skipqa("setup").err
    before, _, after = told.partition("ready")
    for part in (before, after):
        assert "birds" in part
        assert "public domain" in part
        assert "GPL" in part
        assert " MB" in part
    first = before.index("To be indexed")
    assert first < before.index("downloading birds") < before.index("birds: ")
    again = skipqa("setup").err
    assert "To be indexed" not in again
    assert "GPL" in again


def test_it_goes_on_without_an_optional_corpus_and_says_how_to_get_it(
    skipqa: Command, corpora: dict[str, Corpus]
) -> None:
    outcome = skipqa("setup", "--json")
    assert outcome.code == 0
    assert list(json.loads(outcome.out)["indexes"]) == ["birds"]
    (line,) = (line for line in outcome.err.splitlines() if "left out" in line)
    assert line == (
        "drinks is left out: no connection: install drinks; "
        "run `skipqa setup` again once it is there"
    )
    corpora["drinks"].reason = ""
    outcome = skipqa("setup", "--json")
    assert list(json.loads(outcome.out)["indexes"]) == ["birds", "drinks"]
    assert "left out" not in outcome.err


def test_it_stops_where_another_corpus_cannot_be_had(
    skipqa: Command, corpora: dict[str, Corpus]
) -> None:
    corpora["birds"].reason = "no connection"
    outcome = skipqa("setup")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1] == "error: no connection"
    assert default.unbuilt() == ("birds", "drinks")


def test_another_preset_is_fetched_and_its_size_said_first(
    skipqa: Command, corpora: dict[str, Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the 1 GB themselves."""
    fetched = []

    def prepare(desk: Desk) -> None:
        desk.report("fetching")
        fetched.append(desk.weights)

    monkeypatch.setattr(Desk, "prepare", prepare)
    told = skipqa("setup", "--preset", "desk").err
    assert fetched == ["int8"]
    size = "qwen2.5-coder-1.5b-instruct: 1,044 MB in 22 parts, Apache-2.0"
    assert size in " ".join(told.partition("fetching")[0].split())
    refused = skipqa("setup", "--preset", "submission-7b")
    assert refused.code == 2
    assert "setup fetches pocket and desk" in refused.err
