"""`skipqa train` and `python -m skipqa.training`: what they say, and what they refuse."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_training
from safetensors.torch import load_file
from typer.testing import CliRunner

from skipqa.cli import main
from skipqa.cli.train import live, show
from skipqa.errors import UserError
from skipqa.training import stages
from skipqa.training.loop import Diverged
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, TrainingStage
from skipqa.training.stage1.backbone import BackboneStage
from skipqa.training.stages import train


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Sequence[TrainingStage]:
    """The real stage, over tiny networks."""
    tiny_training.shrink_pictures(monkeypatch)
    small = BackboneStage("stage1", tiny_training.SETTINGS, lambda _: tiny_training.networks())
    train = stages.train
    monkeypatch.setattr(stages, "train", lambda *given: train(*given, stages=[small]))
    return [small]


@pytest.mark.usefixtures("tiny")
def test_the_command(data: Path, pocket_kb: Path, tmp_path: Path) -> None:
    arguments = ["--data", str(data), "--pocket-kb", str(pocket_kb), "--out", str(tmp_path / "o")]
    arguments += ["--index", str(tiny_training.write_index(tmp_path / "colours"))]
    arguments += ["--set", "notes=0"]  # which depend on the seed
    call = ["train", "stage1", *arguments, "--seed", "3", "--set", "words=5", "--json"]
    done = CliRunner().invoke(main.app, call)
    assert done.exit_code == 0, done.output
    metrics = json.loads(done.stdout)
    assert metrics.keys() == {"encoder", "tagger", "drafter", "reader"}
    assert "95 questions on 72 photos" in done.stderr
    assert "on the CPU: about" in done.stderr
    config = json.loads((tmp_path / "o" / "config.json").read_text())
    assert config["settings"]["words"] == 5
    assert config["seed"] == 3
    again = CliRunner().invoke(main.app, call)
    assert json.loads(again.stdout) == metrics
    other = CliRunner().invoke(main.app, ["train", "stage1", *arguments, "--seed", "4"])
    assert isinstance(other.exception, UserError)
    assert "holds a run with other seed, settings: choose another folder" in str(other.exception)


def test_the_same_without_typer_and_without_pocket_kb(
    tiny: Sequence[TrainingStage], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No things to tell apart: the encoder stays as it is."""
    lines: list[str] = []
    run = Run(tmp_path / "out", say=lines.append)
    index = tiny_training.write_index(tmp_path / "colours")
    metrics = train("stage1", Inputs(data, index=(index,)), run, stages=tiny)
    assert "pocket-kb/val" not in metrics["reader"]["shipped"]["few"]
    assert metrics["encoder"]["of_things"] == 0
    assert metrics["tagger"]["high_res"]["recognised"] == {"all": {}, "small": {}}
    assert load_file(tmp_path / "out" / "vision.safetensors") == {}
    assert len(lines) == 1
    show(metrics)
    assert "okvqa/val" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("word=3", "unknown setting word; known are answers"),
        ("drafter.lr=fast", "drafter.lr takes a float"),
        ("views=0", "views"),
        ("drafter=3", "drafter is a group"),
    ],
)
def test_bad_settings_are_one_line(data: Path, tmp_path: Path, change: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        train("stage1", Inputs(data), Run(tmp_path / "out"), [change])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_an_unknown_stage_lists_the_known(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no stage 'stage0'; there is splade"):
        train("stage0", Inputs(data), Run(tmp_path))


def refused(*arguments: str | Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> str:
    monkeypatch.setattr(sys, "argv", ["skipqa", "train", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        main.run()
    captured = capfd.readouterr()
    assert exit.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return str(captured.err)


def test_a_missing_zip_is_named(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (data / "coco" / "photos.zip").unlink()
    arguments = ("stage1", "--data", data, "--out", tmp_path / "out")
    line = refused(*arguments, monkeypatch=monkeypatch, capfd=capfd)
    assert line == f"error: {data}/coco/photos.zip does not exist\n"


def test_divergence_is_one_line(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def diverge(*_: object) -> None:
        raise Diverged("drafter", float("nan"), 50)

    monkeypatch.setattr(stages, "train", diverge)
    monkeypatch.setattr(sys, "argv", ["skipqa", "train", "stage1", "--data", str(data), "--out", str(tmp_path)])  # fmt: skip  # noqa: E501
    with pytest.raises(SystemExit):
        main.run()
    *_, line = capfd.readouterr().err.splitlines()
    assert line.startswith("error: drafter diverged, its loss is nan at step 50")


def test_progress_shows_the_loss(capfd: pytest.CaptureFixture[str]) -> None:
    with live() as report:
        report("decoding photos", 5, 10, None)
        report("drafter", 20, 40, 1.2345)
    assert "loss 1.2" in capfd.readouterr().err


def test_results_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    half = {"okvqa/val": 0.5}
    joint = {"okvqa/val": {"accuracy": 0.625}}
    by_form = {"few": half, "unread": {"okvqa/val": 0.25}, "blind": {"okvqa/val": 0.125}}
    show({"drafter": {"shipped": half}, "reader": {"shipped": by_form, "joint": joint}})
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if "okvqa/val" in line)
    assert re.findall(r"\d+\.\d", row) == ["12.5", "25.0", "50.0", "50.0", "62.5"]


@pytest.mark.parametrize("stage", [(), ("reader",)], ids=["alone", "of all"])
def test_a_reader_is_shown_next_to_what_answered_before(
    stage: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = {"many": {"okvqa/held-out": 0.234}}
    found = {"ships": True, "before": before, "shipped": {"many": {"okvqa/held-out": 0.25}}}
    metrics: dict[str, Any] = {"before": before, "dense_reader": found}
    for name in stage:
        metrics = {name: metrics}
    monkeypatch.setattr(stages, "train", lambda *_: metrics)
    done = CliRunner().invoke(main.app, ["train", "reader", "--out", str(tmp_path)])
    row = next(line for line in done.stdout.splitlines() if "many okvqa/held-out" in line)
    assert re.findall(r"\d\.\d{3}", row) == ["0.250", "0.234"]


def test_training_needs_neither_typer_nor_rich() -> None:
    blocked = "typer", "rich", "click", "transformers", "tensorboard", "gguf"
    code = (
        "import sys\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        "import skipqa.training.__main__"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_module_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "skipqa.training", "stage1", "--data", str(tmp_path)]
    done = subprocess.run([*call, "--out", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path}/okvqa/train.jsonl does not exist\n"
