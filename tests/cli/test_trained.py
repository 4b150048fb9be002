"""Commands with the shipped checkpoint, and without it where that is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skipqa import assets, components
from skipqa.knowledge.default import default_indexes

if TYPE_CHECKING:
    from conftest import Command

FOLDER = Path(components.__file__).parent / "checkpoints" / "pocket"
CUP = "What is in the cup?"


def test_untrained_leaves_out_all_that_was_trained(
    skipqa: Command, home: Path, photo: Path
) -> None:
    trained, untrained = (
        json.loads(skipqa("ask", photo, CUP, "--json", "--set", "draft.threshold=1", *more).out)
        for more in ((), ("--untrained",))
    )
    assert trained["answer"] == "coffee"
    costs = [{s["name"]: s["flops"] for s in found["stages"]} for found in (trained, untrained)]
    assert costs[0]["draft"] > 0 == costs[1]["draft"]
    assert costs[0]["encode"] > costs[1]["encode"]  # a tagger, and the drafter's question encoder
    assert costs[0]["decode"] != costs[1]["decode"]


def test_set_has_the_last_word(skipqa: Command, home: Path, photo: Path) -> None:
    fast = skipqa("ask", photo, CUP, "--json", "--set", "draft.threshold=0.5")
    assert json.loads(fast.out)["route"] == "draft"


def test_runs_name_their_indexes_and_the_components_by_their_checksums(
    skipqa: Command, home: Path, photo: Path, tmp_path: Path
) -> None:
    questions = tmp_path / "one.jsonl"
    row = {"question_id": 1, "image": photo.name, "question": CUP, "answers": {"coffee": 1.0}}
    questions.write_text(json.dumps(row) + "\n")
    (tmp_path / "mine.jsonl").write_text('{"id": 1, "text": "coffee is brewed"}\n')
    assert skipqa("index", "build", tmp_path / "mine", tmp_path / "mine.jsonl").code == 0
    words = ("eval", "vqa", "--questions", questions, "--images", photo.parent)
    words += ("--index", "default", "--index", tmp_path / "mine")
    outcome = skipqa(*words, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["accuracy"]["mean"] == 1.0
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [one["name"] for one in run["index"]] == [*default_indexes(), "mine"]
    assert run["index"][-1]["passages"] == 1
    assert run["components"] == {
        path.stem: assets.sha256_of(path) for path in FOLDER.glob("*.safetensors")
    }
    assert run["config"]["decode"]["prompt"] == "short"
    # Another system is another run: its results do not go into the same folder.
    refused = skipqa(*words, "--out", tmp_path / "run", "--untrained")
    assert refused.code == 2
    assert refused.err.count("\n") == 1


def test_set_up_and_demo_convert_nothing_twice(
    skipqa: Command, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what set-up makes, and nothing else in the cache."""
    mine = tmp_path / "home"
    (mine / "converted").mkdir(parents=True)
    for part in ("assets", "indexes"):
        (mine / part).symlink_to(home / part)
    reader = assets.sha256_of(FOLDER / "reader.safetensors")[:8]
    plain = assets.SMOLLM2.key
    for folder in (home / "converted").iterdir():
        if folder.name.startswith(f"{plain}-{reader}") or not folder.name.startswith(plain):
            (mine / "converted" / folder.name).symlink_to(folder)
    before = sorted(path.name for path in (mine / "converted").iterdir())
    monkeypatch.setenv("SKIPQA_HOME", str(mine))
    outcome = skipqa("demo", "--folder", tmp_path / "demo", "--json")
    assert outcome.code == 0
    assert "hot water" in json.loads(outcome.out)["answer"]
    assert "converting" not in outcome.err
    assert sorted(path.name for path in (mine / "converted").iterdir()) == before
