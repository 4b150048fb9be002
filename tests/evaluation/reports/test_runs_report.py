"""The whole report, and the command that writes it."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image
from typer.testing import CliRunner

from skipqa.cli.main import app
from skipqa.errors import UserError
from skipqa.evaluation.reports.runs import read_runs
from skipqa.evaluation.reports.runs_report import Figures, write

if TYPE_CHECKING:
    from made_runs import MakeRun


def report(folders: list[Path], out: Path) -> Figures:
    return write(read_runs(folders), out)


def test_report_of_several_systems(made: MakeRun, tmp_path: Path) -> None:
    folders = [
        made("a", "skip", 0.5, flops=10e9),
        made("b", "dense", 0.5, flops=50e9),
        made("c", "skip-no-pruning", 0.5, tokens=576),
        made("d", "skip", 0.4, pruner="random", retention=0.05),
        made("e", "skip", 0.4, pruner="random", retention=0.5),
    ]
    drawn = report(folders, tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    headings = re.findall(r"^#+ .*", text, re.MULTILINE)
    assert headings == [
        "# Results",
        "## okvqa/val.jsonl",
        "### Accuracy and compute",
        "### Where the time goes",
        "### Ablations",
        "### Visual tokens kept",
        "### By category",
        "## Runs",
    ]
    assert str(tmp_path) not in text, "no path of this machine"
    figures = ["frontier", "latency", "sweep"]
    assert drawn.files == [f"{f}.{kind}" for f in figures for kind in ("svg", "png")]
    for figure in figures:
        assert f"![{figure}]({figure}.svg)" in text
        ET.parse(tmp_path / "out" / f"{figure}.svg")
        with Image.open(tmp_path / "out" / f"{figure}.png") as image:
            assert image.width > 1_000
    lines = text.splitlines()
    tables = [(line, rule) for line, rule in pairwise(lines) if "| --- |" in rule]
    assert all(line.count("|") == rule.count("|") for line, rule in tables)
    report(folders, tmp_path / "again")
    for file in ("report.md", *drawn.files):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "out" / file).read_bytes()


def test_missing_sections_say_how_to_make_them(made: MakeRun, tmp_path: Path) -> None:
    report([made("a", "skip")], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "### Ablations\n\nNot run: `skipqa eval vqa … --system skip-no-pruning`" in text
    assert "### Visual tokens kept\n\nNot run: `skipqa eval vqa … --pruner random" in text
    assert "### By subset" not in text
    assert "### Accuracy and compute" not in text


def test_types_have_a_section(made: MakeRun, tmp_path: Path) -> None:
    typed = [made(name, name, fields=lambda q: {"type": "ocr"}) for name in ("skip", "dense")]
    report(typed, tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "### By type\n\n| type | questions |  | skip | dense |" in text
    assert "| all types | 40 | accuracy, % |" in text
    report([made("bare")], tmp_path / "bare-out")
    assert "By type" not in (tmp_path / "bare-out" / "report.md").read_text()


def test_types_may_come_with_the_report(made: MakeRun, tmp_path: Path) -> None:
    types = tmp_path / "types.jsonl"
    words = ["report", "runs", str(made("a")), "--out", str(tmp_path / "out")]
    words += ["--types", str(types), "--json"]
    types.write_text('{"question_id": 3, "type": "ocr"}\n{"question_id": 4, "type": "ocr"}\n')
    assert CliRunner().invoke(app, words).exit_code == 0
    assert "| all types | 2 | accuracy, % |" in (tmp_path / "out" / "report.md").read_text()
    types.write_text('{"question_id": "x", "type": "ocr"}\n')
    refused = CliRunner().invoke(app, words)
    assert "the types are of none of the questions" in str(refused.exception)


def test_two_files_of_questions_have_their_own_figures(made: MakeRun, tmp_path: Path) -> None:
    folders = [made("a", "skip"), made("b", "skip", file="vqav2/val.jsonl")]
    drawn = report(folders, tmp_path / "out")
    assert [f for f in drawn.files if f.endswith("svg")] == [
        "latency-1.svg",
        "latency-2.svg",
    ]


def test_a_file_is_no_folder_for_a_report(made: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UserError, match="is a file, not a folder for the report"):
        report([made("a")], tmp_path / "out")


def test_command(made: MakeRun, tmp_path: Path) -> None:
    folders = [str(made("a", "skip")), str(made("b", "dense"))]
    words = ["report", "runs", *folders, "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.exception
    printed = json.loads(done.stdout)
    assert Path(printed["report"]).is_file()
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0


def test_without_matplotlib_there_are_tables_and_one_line(
    made: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    folders = [str(made("a", "skip")), str(made("b", "dense"))]
    words = ["report", "runs", *folders, "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["figures"] == []
    missing = "no figures: drawing figures needs an optional dependency: pip install 'skipqa[plot]'"
    assert done.stderr.splitlines().count(missing) == 1
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| dense |" in text
    assert "### Where the time goes" not in text
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.md"]
