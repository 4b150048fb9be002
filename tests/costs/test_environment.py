"""The header of a results file says how to make it again, and nothing of this machine's folders."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from skipqa.costs.environment import describe


@pytest.mark.parametrize(
    ("module", "arguments", "command"),
    [
        (None, ["/opt/bin/skipqa", "eval", "/data/val.jsonl"], "skipqa eval val.jsonl"),
        (
            "skipqa.__main__",
            ["/opt/skipqa/__main__.py", "eval", "--jobs", "3"],
            "python -m skipqa eval --jobs 3",
        ),
        (
            None,
            ["benchmarks/desk.py", "--questions", "okvqa/val.jsonl"],
            "desk.py --questions okvqa/val.jsonl",
        ),
    ],
)
def test_a_command_can_be_given_again(
    module: str | None, arguments: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = None if module is None else ModuleSpec(module, loader=None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setattr("sys.argv", arguments)
    assert describe()["command"] == command
    monkeypatch.setenv("SKIPQA_COMMIT", "abc1234")
    assert describe()["commit"] == "abc1234"


@pytest.mark.parametrize("module", ["nested.suites", "nested.suites.attack"])
def test_a_module_is_named_with_its_packages(module: str, tmp_path: Path) -> None:
    package = tmp_path / "nested" / "suites"
    package.mkdir(parents=True)
    told = "from skipqa.costs.environment import describe\nprint(describe()['command'])\n"
    for name in ("__main__", "attack"):
        (package / f"{name}.py").write_text(told)
    done = subprocess.run(
        [sys.executable, "-m", module, "--env", "suites"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == f"python -m {module} --env suites", done.stderr
