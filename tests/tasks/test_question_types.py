"""Types from a file of their own: joined by id, refused where they belong to other questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skipqa.errors import UserError
from skipqa.tasks.example import Example
from skipqa.tasks.question_types import with_types

ASKED = [
    Example(1, "a.png", "What is it?", {"dog": 1.0}),
    Example("two", "a.png", "Why?", {"yes": 1.0}, type="own"),
]


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_types_are_joined_by_id(tmp_path: Path) -> None:
    rows = [{"question_id": "1", "type": "lookup"}, {"question_id": "two", "type": "ocr"}]
    path = write(tmp_path / "types.jsonl", *rows, {"question_id": 9, "type": "other"})
    typed, lacking = with_types(ASKED, path)
    assert [example.type for example in typed] == ["lookup", "ocr"]
    assert lacking == ""


def test_what_the_file_lacks_is_told_and_keeps_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "types.jsonl", {"question_id": 1, "type": "lookup"})
    typed, lacking = with_types(ASKED, path)
    assert [example.type for example in typed] == ["lookup", "own"]
    assert lacking == f"{path}: 1 questions without a type (first: 'two')"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"question_id": 3, "type": "ocr"}], "has the type of none of the 2 questions"),
        ([{"question_id": 1}], "row 0: the field 'type' is missing"),
        ([{"question_id": 1, "type": 4}], "row 0: the field 'type' must be a string"),
        (
            [{"question_id": 1, "type": "a"}, {"question_id": 1, "type": "b"}],
            "question 1 is 'a' and 'b'",
        ),
    ],
)
def test_a_wrong_file_is_one_line(rows: list[Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told):
        with_types(ASKED, write(tmp_path / "types.jsonl", *rows))
