"""`skipqa judge` as a user types it, against a scripted judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from scripted_vlm import Asked, ScriptedVLM, refused
from typer.testing import CliRunner, Result

from skipqa.cli.judge import judge
from skipqa.errors import UserError
from skipqa.tasks.llava_bench import score_files

app = typer.Typer()
app.command()(judge)
CATEGORIES = ("conv", "conv", "detail", "complex")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_answers(folder: Path, *texts: str) -> None:
    rows = [{"question_id": n, "text": text} for n, text in enumerate(texts)]
    write(folder / "answers.jsonl", rows)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    questions = [
        {"question_id": n, "image": "1.jpg", "text": f"What is {n}?", "category": category}
        for n, category in enumerate(CATEGORIES)
    ]
    write(tmp_path / "questions.jsonl", questions)
    references = [{"question_id": n, "text": f"reference {n}"} for n in range(4)]
    write(tmp_path / "answers_gpt4.jsonl", references)
    write(tmp_path / "context.jsonl", [{"image": "1.jpg", "caption": "A lake."}])
    write_answers(tmp_path, "good", "bad", "good", "good")
    return tmp_path


def ask(vlm: ScriptedVLM, data: Path, *more: str) -> Result:
    words = ["--data", str(data), "--answers", str(data / "answers.jsonl"), "--endpoint", vlm.url]
    out = ("--out", str(data / "reviews.jsonl"))
    return CliRunner().invoke(app, ["llava-bench", *words, "--model", "judge", *out, *more])


def attentive(asked: Asked) -> str:
    assert asked.image is None, "the judge reads a description"
    answer = asked.text.partition("<assistant_2>")[2].partition("</assistant_2>")[0].strip()
    return f"8 {8 if answer == 'good' else 2}\nbecause"


def rows(data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (data / "reviews.jsonl").read_text().splitlines()]


def test_answers_are_reviewed_and_added_up(vlm: ScriptedVLM, data: Path) -> None:
    vlm.script = {"review": attentive}
    done = ask(vlm, data, "--json")
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert found["scores"] == {"all": 81.25, "conv": 62.5, "detail": 100.0, "complex": 100.0}
    assert "440 tokens: 400 in, 40 out" in done.stderr
    offline = score_files(data / "reviews.jsonl", data / "questions.jsonl")
    assert offline.scores == found["scores"]
    table = ask(vlm, data).stdout
    assert "complex" in table
    assert "4 reviews in" in table
    assert len(vlm.asked) == 4, "nothing was asked again"


def test_a_stopped_run_goes_on(vlm: ScriptedVLM, data: Path) -> None:
    """After a failure, a half-written line, an unreadable review and a changed answer."""
    vlm.script = {"review": attentive}
    vlm.replies = [refused(400, "too long")]
    assert "too long" in str(ask(vlm, data, "--set", "concurrency=1").exception)
    vlm.script = {"review": "I would rather not"}
    done = ask(vlm, data)
    assert "no review has two scores" in str(done.exception)
    with (data / "reviews.jsonl").open("a") as file:
        file.write('{"question_id": 0, "cat')
    vlm.script, before = {"review": attentive}, len(vlm.asked)
    assert ask(vlm, data).exit_code == 0
    assert len(vlm.asked) - before == 4
    write_answers(data, "good", "good", "good", "good")
    found = json.loads(ask(vlm, data, "--json").stdout)
    assert len(vlm.asked) - before == 5, "only what changed"
    assert found["scores"]["all"] == 100.0
    assert score_files(data / "reviews.jsonl").scores["all"] == 100.0, "the last review counts"


def test_an_unreadable_review_is_left_out_and_told(vlm: ScriptedVLM, data: Path) -> None:
    vlm.script = {"review": lambda asked: "no" if "What is 3?" in asked.text else attentive(asked)}
    done = ask(vlm, data, "--json")
    assert "1 reviews without two scores (first: 3): left out" in done.stderr
    assert "complex" not in json.loads(done.stdout)["scores"]
    assert sum(row["tuple"] is None for row in rows(data)) == 1


def test_bad_commands_are_one_line(vlm: ScriptedVLM, data: Path) -> None:
    write_answers(data, "good")
    assert "3 missing (first: 1, 2, 3)" in str(ask(vlm, data).exception)
    done = CliRunner().invoke(app, ["okvqa", "--data", "a", "--answers", "b", "--out", "c"])
    assert isinstance(done.exception, UserError)
    assert str(done.exception) == "'okvqa' needs no judge: use `skipqa score okvqa`"
    assert not vlm.asked
