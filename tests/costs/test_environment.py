"""The header of a results file says how to make it again, and nothing of this machine's folders."""

from __future__ import annotations

import pytest

from skipqa.costs.environment import describe


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["/opt/bin/skipqa", "eval", "/data/val.jsonl"], "skipqa eval val.jsonl"),
        (["/opt/skipqa/__main__.py", "eval", "--jobs", "3"], "python -m skipqa eval --jobs 3"),
        (
            ["benchmarks/desk.py", "--questions", "okvqa/val.jsonl"],
            "desk.py --questions okvqa/val.jsonl",
        ),
    ],
)
def test_a_command_can_be_given_again(
    arguments: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", arguments)
    assert describe()["command"] == command
    monkeypatch.setenv("SKIPQA_COMMIT", "abc1234")
    assert describe()["commit"] == "abc1234"
