"""`skipqa prompted` as a user types it, against a scripted model and a real index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_vlm import ScriptedVLM

from skipqa.errors import UserError

KEY = "sk-a-secret-that-nobody-may-see"
QUESTION = "How is this drink brewed?"


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs the command's own app and gives exit code, output and errors."""
    import typer

    from skipqa.cli.prompted import prompted

    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command("prompted")(prompted)

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        code = app(list(map(str, arguments)), standalone_mode=False)
        return (code or 0, *capfd.readouterr())

    return call


def test_the_command_answers(
    command: Any, medium: ScriptedVLM, index_folder: Path, cup_file: Path
) -> None:
    options = ("--endpoint", medium.url, "--model", "some-vlm", "--index", index_folder)
    code, out, _ = command(cup_file, QUESTION, *options, "--json")
    found = json.loads(out)
    assert (code, found["text"], found["usage"]["total_tokens"]) == (0, "under pressure", 660)
    code, out, err = command(cup_file, QUESTION, *options)
    assert code == 0
    assert all(word in out for word in ("under pressure", "espresso cup", "cited", "660 tokens"))
    assert "relevance" in err, "progress, step by step"


def test_the_command_answers_many(
    command: Any,
    medium: ScriptedVLM,
    index_folder: Path,
    cup_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SKIPQA_ENDPOINT", medium.url)
    monkeypatch.setenv("SKIPQA_ENDPOINT_MODEL", "some-vlm")
    monkeypatch.setenv("MY_KEY", KEY)
    questions = cup_file.with_name("questions.jsonl")
    rows = [{"image": "cup.png", "question": QUESTION}, {"image": "no.png", "question": "What?"}]
    questions.write_text("\n".join(map(json.dumps, rows)))
    code, out, err = command(
        *("--batch", questions, "--index", index_folder, "--json"),
        *("--key-variable", "MY_KEY", "--set", "queries=together"),
    )
    first, second = map(json.loads, out.splitlines())
    assert (code, first["text"], second["text"]) == (1, "under pressure", "")
    assert "no such file" in second["error"]
    assert "1 question without an answer" in err
    assert {asked.headers["authorization"] for asked in medium.asked} == {f"Bearer {KEY}"}
    assert KEY not in out + err


def test_the_command_runs_a_baseline(command: Any, vlm: ScriptedVLM, cup_file: Path) -> None:
    vlm.script = {"caption": "a cup", "captioned": "<answer>coffee</answer>"}
    options = ("--endpoint", vlm.url, "--model", "some-vlm", "--method", "promptcap")
    code, out, _ = command(cup_file, QUESTION, *options)
    assert code == 0
    assert "coffee" in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("photo.jpg",), "give a photo and a question"),
        (("photo.jpg", "Why?", "--batch", "a.jsonl"), "give a photo and a question"),
        (("photo.jpg", "Why?"), "--endpoint URL --model NAME"),
        (("a", "b", "--endpoint", "http://a/v1", "--model", "m", "--set", "hard.x=1"), "hard.x"),
        (("a", "b", "--endpoint", "http://a/v1", "--model", "m", "--method", "x"), "method takes"),
    ],
)
def test_bad_commands_are_one_line(command: Any, arguments: tuple[str, ...], line: str) -> None:
    with pytest.raises(UserError) as refused:
        command(*arguments)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_help_has_examples(command: Any) -> None:
    from skipqa.cli.endpoint import KEY_VARIABLE
    from skipqa.prompted.endpoint import KEY_VARIABLE as DEFAULT  # heavy to import for a help text

    assert KEY_VARIABLE == DEFAULT
    _, out, _ = command("--help")
    assert "skipqa prompted cup.jpg" in out.partition("Examples")[2]
