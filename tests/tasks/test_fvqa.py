"""FVQA: how answers are compared, and its facts as a corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skipqa.cli.main import app
from skipqa.errors import UserError
from skipqa.knowledge.sources import Document
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.tasks.fvqa import FVQA, evaluate, score_files, top1, write_facts

ROW = {"image": "a.webp", "from": "kb", "kb": "webchild"}


def write_split(folder: Path, split: str, *facts: str) -> None:
    rows = [
        {
            **ROW,
            "question_id": f"{split}-{number}",
            "question": "Which of these?",
            "answer": "The Lamps",
            "fact": fact,
        }
        for number, fact in enumerate(facts)
    ]
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_top1_takes_singular_and_plural_as_equal() -> None:
    assert top1("lamps.", "The Lamps") == top1("a lamp", "the lamps") == top1("lamps", "lamp") == 1
    assert top1("lamp post", "lamps") == top1("cat", "lamps") == 0
    assert evaluate(["lamp", "lamps", "cat", "lamps"], ["lamps"] * 4).scores == {"top1": 75.0}
    with pytest.raises(UserError, match="no questions"):
        evaluate([], [])


def test_rows_become_examples(tmp_path: Path) -> None:
    write_split(tmp_path, "val", "a lamp gives light")
    (example,) = FVQA.load(tmp_path, "val")
    assert (example.type, example.category) == ("kb", "webchild")
    assert (example.fact, example.gold) == ("a lamp gives light", ())
    assert FVQA.score(example, "lamps") == 1
    assert FVQA.score(example, "lamp") == 0, "the score keeps them apart"
    assert FVQA.images(tmp_path, "train") == tmp_path / "train.zip"


def test_predictions_are_scored_by_id(tmp_path: Path) -> None:
    write_split(tmp_path, "val", "a lamp gives light", "lamps are hot")
    FVQA.write_predictions({"val-1": "cat", "val-0": "lamp"}, tmp_path / "p.json")
    report = score_files(tmp_path / "p.json", tmp_path / "val.jsonl")
    assert report.scores == {"top1": 50.0}


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_command_writes_the_facts(tmp_path: Path, options: tuple[str, ...]) -> None:
    for split in FVQA.splits:
        write_split(tmp_path, split, "lamps are hot")
    path = tmp_path / "new" / "fvqa.jsonl"
    arguments = ["data", "fvqa", "--data", str(tmp_path), "--out", str(path), *options]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert JsonLines(path).fingerprint()
    if options:
        assert json.loads(done.stdout) == {"file": str(path), "facts": 1}
    else:
        assert done.stdout == f"1 fact in {path}\n"
    with pytest.raises(UserError, match="does not exist: set the folder"):
        CliRunner().invoke(
            app, ["data", "fvqa", "--data", "nowhere", "--out", "x"], catch_exceptions=False
        )


def test_facts_are_a_corpus(tmp_path: Path) -> None:
    write_split(tmp_path, "train", "a lamp gives light", "lamps are hot")
    write_split(tmp_path, "val", "lamps are hot", "a moth likes light")
    assert write_facts(tmp_path, tmp_path / "fvqa.jsonl") == 3
    read = list(JsonLines(tmp_path / "fvqa.jsonl").read())
    assert all(isinstance(document, Document) for document in read)
    assert {d.id: d.text for d in read if isinstance(d, Document)} == {
        "fvqa:train-0": "a lamp gives light",
        "fvqa:train-1": "lamps are hot",
        "fvqa:val-1": "a moth likes light",
    }
