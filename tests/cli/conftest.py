"""The command as a user meets it: arguments in, exit code and two streams out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from skipqa.cli.main import run


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def skipqa(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs `skipqa ARGUMENTS` through its real entry point, in this process to be fast.

    Whatever the entry point does not turn into an exit code fails the test as it is.
    """

    def call(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["skipqa", *map(str, arguments)])
        capfd.readouterr()
        code = 0
        try:
            run()
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        return Outcome(code, *capfd.readouterr())

    return call
