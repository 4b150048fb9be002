"""What questions need, from a file next to the questions: JSON Lines of `{question_id, type}`.

S3VQA's types of OK-VQA are lookup (the name of the thing, then a fact about it), ocr, speculative
and other. Enters: examples and the file. Leaves: the examples with their types. The types change
no answer and no score; summaries and reports are broken down by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from skipqa.errors import UserError
from skipqa.files import Fields, check_rows, read_jsonl
from skipqa.tasks.example import Example
from skipqa.tasks.scores import named

FIELDS: Fields = {"question_id": (int, str), "type": str}


def read_types(path: Path) -> dict[str, str]:
    """Question id, as text -> type."""
    types: dict[str, str] = {}
    for row in check_rows(str(path), read_jsonl(path), FIELDS):
        id = str(row["question_id"])
        if types.setdefault(id, row["type"]) != row["type"]:
            raise UserError(f"{path}: question {id} is {types[id]!r} and {row['type']!r}")
    return types


def with_types(examples: Sequence[Example], path: Path) -> tuple[list[Example], str]:
    """The examples with the types of the file, and one line about those that it lacks, if any.

    An example that the file lacks keeps the type of its own row.
    """
    types = read_types(path)
    lacking = tuple(example.id for example in examples if str(example.id) not in types)
    if len(lacking) == len(examples):
        raise UserError(f"{path} has the type of none of the {len(examples):,} questions")
    typed = [replace(e, type=types.get(str(e.id), e.type)) for e in examples]
    return typed, f"{path}: {named('questions without a type', lacking)}" if lacking else ""
