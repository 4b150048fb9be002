"""The examples and the README's Python run as they stand: `python FILE` in a folder of its own.

One example starts in a process of its own, as a user starts it; the others run in this process,
which has torch already.
"""

from __future__ import annotations

import io
import os
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

import skipqa

ROOT = Path(skipqa.__file__).parents[1]
EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
MOST_LINES = 60
PRINTED = {  # of each example, what it must say
    "ablation": r"QVS +V' +\d+ +Tokyo +from Japan: .*\nQVS .*\nchance ",
    "batch": r"Germany .*capital.* Berlin .* GFLOPs\n(.*\n)*\d answered by the drafter, \d with",
    "own_benchmark": r"skip +accuracy 1\.00 .* GFLOPs per question\nno-retrieval +accuracy 0\.",
    "own_documents": r"3 passages from 3 files\n.* Aiko Tanaka \(full\)\n  0\.9\d  japan: ",
}


IN_ITS_OWN_PROCESS = "own_documents"


def run(script: Path, folder: Path) -> str:
    """What it prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_here(script: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(script)])
    printed = io.StringIO()
    with redirect_stdout(printed):
        runpy.run_path(str(script), run_name="__main__")
    return printed.getvalue()


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def test_every_example_is_tested_and_short() -> None:
    assert EXAMPLES.keys() == PRINTED.keys()
    lengths = {name: len(path.read_text().splitlines()) for name, path in EXAMPLES.items()}
    assert {name: n for name, n in lengths.items() if n > MOST_LINES} == {}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(
    name: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == IN_ITS_OWN_PROCESS:
        printed = run(EXAMPLES[name], tmp_path)
    else:
        printed = run_here(EXAMPLES[name], tmp_path, monkeypatch)
    assert re.search(PRINTED[name], printed), printed
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_python_in_the_readme_runs(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks one after the other, next to a photo of a drawn cup."""
    blocks = python_blocks(ROOT / "README.md")
    assert blocks
    photo = Image.new("RGB", (640, 480), "#d8c8b0")
    draw = ImageDraw.Draw(photo)
    draw.ellipse((170, 90, 470, 390), "white")
    draw.ellipse((200, 120, 440, 360), "#3b2314")
    photo.save(tmp_path / "photo.jpg")
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    assert run_here(script, tmp_path, monkeypatch).strip()
