"""Files that are not JSON: the message names one line, and the column in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipqa.errors import UserError
from skipqa.files import atomic, claim, parse_json, read_json, read_jsonl, write_json

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


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "a.json"
    write_json(path, {"a": 1})
    with atomic(path) as one, atomic(path) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
        assert read_json(path) == {"a": 1}
    assert path.read_text() == "one", "the last block to end"

    def fail() -> None:
        with atomic(path) as partial:
            partial.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "one"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_is_claimed_once(tmp_path: Path) -> None:
    path = tmp_path / "out" / "run.json"
    claim(path, {"seed": 1, "ranks": (8, 12), "limit": None})
    claim(path, {"seed": 1, "ranks": (8, 12)})
    with pytest.raises(UserError, match="out holds a run with other data, seed: choose another"):
        claim(path, {"seed": 2, "ranks": (8, 12), "data": "x"})
    assert read_json(path)["seed"] == 1
