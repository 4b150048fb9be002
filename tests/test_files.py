"""Files that are not JSON: the message names one line, and the column in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipqa.errors import UserError
from skipqa.files import parse_json, read_json, read_jsonl

ROW = '{"id": 1, "text": "a" "b"}'


def test_a_bad_row_of_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text(f"{{}}\n{ROW}\n")
    with pytest.raises(UserError) as refused:
        read_jsonl(path)
    assert str(refused.value) == (f"{path} line 2: not JSON at column 23 (Expecting ',' delimiter)")


def test_a_bad_file(tmp_path: Path) -> None:
    path = tmp_path / "docs.json"
    path.write_text(f"[{{}},\n {ROW}]\n")
    with pytest.raises(UserError) as refused:
        read_json(path)
    assert str(refused.value) == (f"{path}: not JSON at line 2 column 24 (Expecting ',' delimiter)")


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_constants_that_json_lacks_are_refused(tmp_path: Path, constant: str) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text(f'{{}}\n{{"score": {constant}}}\n')
    with pytest.raises(UserError) as refused:
        read_jsonl(path)
    assert str(refused.value) == f"{path} line 2: {constant} is not JSON"
    with pytest.raises(UserError, match=f"^{constant} is not JSON$"):
        parse_json(constant)
