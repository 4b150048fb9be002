"""What the commands print when all is well."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
import typer
from PIL import Image

from skipqa import __version__, assets
from skipqa.backbones.networks import mobile_sam
from skipqa.backbones.segmenter import Segmenter
from skipqa.cli.main import app
from skipqa.config import PRESETS
from skipqa.knowledge.default import DEFAULT_SOURCES, OPTIONAL, default_indexes
from skipqa.knowledge.index.build import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder

if TYPE_CHECKING:
    from conftest import Command

ROOT = Path(__file__).parents[2]
QUESTION = "How is this drink brewed?"
KEYS = (
    "answer route confidence grounded evidence text regions tokens passages stages flops latency_ms"
).split()


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that call it, inside groups too."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield path, command
    else:
        for name, subcommand in subcommands.items():
            yield from commands(subcommand, *path, name)


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
class TestEveryCommand:
    def test_help_shows_examples(self, skipqa: Command, words: tuple[str, ...]) -> None:
        outcome = skipqa(*words, "--help")
        assert outcome.code == 0
        assert outcome.err == ""
        assert "Example" in outcome.out
        assert f"skipqa {' '.join(words)}" in outcome.out.partition("Example")[2]

    def test_has_json(self, words: tuple[str, ...]) -> None:
        options = {name for parameter in COMMANDS[words].params for name in parameter.opts}
        assert "--json" in options


def test_help_says_how_to_keep_the_default_corpus(skipqa: Command) -> None:
    asking = " ".join(skipqa("ask", "--help").out.replace("│", " ").split())
    assert "without default, the default corpora are not searched" in asking
    assert "--index default --index my-index" in asking
    building = " ".join(skipqa("index", "build", "--help").out.replace("│", " ").split())
    assert "--index default --index my-index" in building
    assert "One index per corpus finds more where passages differ in length" in building
    assert all(name in building for name in (*DEFAULT_SOURCES, ".xz"))


def test_help_is_in_plain_words(skipqa: Command) -> None:
    told = " ".join(skipqa("eval", "vqa", "--help").out.replace("│", " ").split())
    assert "Random seed." in told
    assert "with several, latency is not measured" in told


def test_help_names_every_command(skipqa: Command) -> None:
    out = skipqa("--help").out
    assert all(words[0] in out for words in COMMANDS)


def test_an_example_over_shipped_runs_can_be_run(
    skipqa: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = COMMANDS["theory", "quantities"].help or ""
    (example,) = (line for line in told.splitlines() if "skipqa theory" in line)
    monkeypatch.chdir(ROOT)
    outcome = skipqa(*shlex.split(example)[1:])
    assert (outcome.code, outcome.err) == (0, "")


def test_help_names_every_preset(skipqa: Command) -> None:
    told = " ".join(skipqa("ask", "--help").out.replace("│", " ").split())
    assert f"Models and budgets: {', '.join(PRESETS)}." in told


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version(skipqa: Command, word: str) -> None:
    outcome = skipqa(word)
    assert (outcome.code, outcome.out.strip(), outcome.err) == (0, __version__, "")


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "skipqa", "version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{__version__}\n"


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_a_terminal_of_another_encoding_is_written_to(tmp_path: Path, more: list[str]) -> None:
    corpus, index = tmp_path / "piano.jsonl", tmp_path / "index"
    corpus.write_text('{"id": 1, "text": "Blüthner built the piano."}\n', encoding="utf-8")
    build(index, [JsonLines(corpus)], LexicalEncoder.default())
    command = [sys.executable, "-m", "skipqa", "index", "search", str(index), "piano →", *more]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=ascii_only, timeout=60, check=True)
    told = done.stdout.decode("ascii")
    if more:
        (result,) = json.loads(told)["results"]
        assert result["question"] == "piano →"
        assert result["hits"][0]["text"] == "Blüthner built the piano."
    else:
        assert "Bl?thner built the piano." in told


def test_interrupted_says_how_to_go_on(tmp_path: Path) -> None:
    waits = tmp_path / "predictions.json"
    os.mkfifo(waits)
    files = [word for name in ("predictions", "annotations") for word in (f"--{name}", str(waits))]
    command = [sys.executable, "-m", "skipqa", "score", "aokvqa", *files]
    # A job in the background of a shell ignores the signal, and so would its children
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    with process, waits.open("w"):  # which opens when the command reads it
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told == "interrupted; run the same command again to continue\n"


def test_ask_json_is_all_that_is_on_stdout(home: Path, photo: Path) -> None:
    """In a process of its own: nothing that any library prints may slip in."""
    command = Path(sys.executable).with_name("skipqa")
    done = subprocess.run(
        [command, "ask", photo, QUESTION, "--json"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert list(found) == KEYS
    assert found["evidence"][0]["id"] == "wordnet:n07920052"
    assert "Warning" not in done.stderr


def test_ask_shows_answer_evidence_and_costs(skipqa: Command, home: Path, photo: Path) -> None:
    outcome = skipqa("ask", photo, QUESTION)
    assert outcome.code == 0
    assert "pressure" in outcome.out
    assert "wordnet:n07920052" in "".join(outcome.out.split())
    for stage in (
        "encode draft budget prune regions zoom read_text retrieve verify fuse decode total".split()
    ):
        assert stage in outcome.out


def test_ask_in_a_sentence_names_the_passage(skipqa: Command, home: Path, photo: Path) -> None:
    found = json.loads(skipqa("ask", photo, QUESTION, "--style", "sentence", "--json").out)
    assert found["route"] == "full"
    text, _, number = found["answer"].rpartition(" [")
    assert "hot water" in text
    assert text in found["evidence"][int(number[:-1]) - 1]["text"]


def test_ask_drafts_unless_told_not_to(skipqa: Command, home: Path, photo: Path) -> None:
    asked = ("ask", photo, "What is this?", "--untrained", "--json")
    quick = json.loads(skipqa(*asked).out)
    assert (quick["route"], quick["answer"]) == ("draft", "espresso")
    full = json.loads(skipqa(*asked, "--no-draft").out)
    assert full["route"] == "full"
    assert full["evidence"]


def test_ask_draws_the_trace_where_told(
    skipqa: Command, home: Path, photo: Path, tmp_path: Path
) -> None:
    path = tmp_path / "my [bold] trace.png"  # no markup to us
    outcome = skipqa("ask", photo, "What is this?", "--json", "--explain", path)
    assert outcome.code == 0
    assert json.loads(outcome.out)["answer"] in ("espresso", "coffee")
    assert str(path) in outcome.err.replace("\n", "")
    with Image.open(path) as image:
        assert image.format == "PNG"


def test_ask_takes_settings(skipqa: Command, home: Path, photo: Path) -> None:
    settings = ("--set", "budget.tokens=32", "--set", "regions.max_regions=3")
    found = json.loads(skipqa("ask", photo, QUESTION, "--json", *settings).out)
    assert found["tokens"]["kept"] == 32
    assert len(found["regions"]) <= 3


def test_ask_with_boxes_says_that_it_takes_a_while(
    skipqa: Command, segmenter: Segmenter, photo: Path
) -> None:
    outcome = skipqa("ask", photo, QUESTION, "--json", "--set", "regions.proposals=boxes")
    assert outcome.code == 0
    assert "some seconds" in outcome.err
    stages = {stage["name"]: stage for stage in json.loads(outcome.out)["stages"]}
    assert stages["regions"]["flops"] > mobile_sam.flops(segmenter.network.config, 1)


def test_setup_again_is_quick_and_says_where_things_are(skipqa: Command, home: Path) -> None:
    outcome = skipqa("setup", "--json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert found["home"] == str(assets.home())
    assert [name for name in DEFAULT_SOURCES if name in found["indexes"]] == list(found["indexes"])
    assert set(DEFAULT_SOURCES) - set(found["indexes"]) <= set(OPTIONAL)
    for index in found["indexes"].values():
        assert Path(index["folder"]).is_dir()
        assert index["passages"] > 0
        assert index["bytes"] > 0
        assert index["licence"]
    assert "ready" in outcome.err
    assert "downloading" not in outcome.err


def test_setup_goes_on_with_an_index_whose_build_was_killed(home: Path, tmp_path: Path) -> None:
    """Only its beginning is awaited: a whole build takes half a minute."""
    for part in ("assets", "converted"):
        (tmp_path / part).symlink_to(home / part)
    first, *others = (tmp_path / "indexes" / path.name for path in default_indexes().values())
    (first / "building").mkdir(parents=True)
    process = subprocess.Popen(
        [Path(sys.executable).with_name("skipqa"), "setup"],
        env=os.environ | {"SKIPQA_HOME": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    try:
        while not list(first.glob("building/part-*")):
            assert process.poll() is None, "it left the index unfinished"
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    assert not any(other.exists() for other in others)  # one after another


def test_demo(skipqa: Command, home: Path, tmp_path: Path) -> None:
    outcome = skipqa("demo", "--folder", tmp_path / "demo", "--json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert list(found) == KEYS
    assert "pressure" in found["answer"]
    names = sorted(path.name for path in (tmp_path / "demo").iterdir())
    assert names == ["coffee.png", "trace.html", "trace.png"]
