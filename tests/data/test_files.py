"""Files that are not JSON: the message names one line, and the column in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipqa.data.files import read_json, read_jsonl
from skipqa.errors import UserError

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
