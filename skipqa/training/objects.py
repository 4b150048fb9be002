"""The annotated things of OK-VQA's training questions, read in one place.

Enters: `train_objects.jsonl`. Leaves: by question id, the words of the question that stand for a
thing, and that thing's name, as the file has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from skipqa.files import Fields, check_rows, read_jsonl

FILE = "train_objects.jsonl"  # in OK-VQA's folder
FIELDS: Fields = {"question_id": (int, str), "span": str, "object": str}


class AskedThing(NamedTuple):
    span: str
    name: str


def read_objects(folder: Path) -> dict[str, AskedThing]:
    """Question id, as text -> the thing it asks about; none where there is no such file."""
    path = folder / FILE
    if not path.is_file():
        return {}
    rows = check_rows(str(path), read_jsonl(path), FIELDS)
    return {str(row["question_id"]): AskedThing(row["span"], row["object"]) for row in rows}
