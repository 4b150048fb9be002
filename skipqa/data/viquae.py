"""ViQuAE: trivia questions about named entities on Wikimedia photos, in KILT-like JSON Lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skipqa.data.example import Example, QuestionId
from skipqa.data.official import official_file, require_split
from skipqa.errors import UserError
from skipqa.files import check_object, check_rows, read_jsonl, write_json, write_jsonl

SCORING_FIELDS = {"id": str, "output": dict}
FIELDS = {**SCORING_FIELDS, "input": str, "image": str}


class Viquae:
    name = "viquae"
    splits = ("train", "validation", "test")

    def file_name(self, split: str) -> str:
        return f"{split}.jsonl"

    def load(self, folder: Path, split: str, images: Path) -> list[Example]:
        require_split(self.name, split, self.splits)
        path = official_file(self.name, folder, self.file_name(split))
        return [
            Example(
                question_id=row["id"],
                image=images / row["image"],
                question=row["input"],
                answers=tuple(row["output"]["answer"]),
                record=row,
            )
            for row in _read(path, FIELDS)
        ]

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        write_jsonl(folder / self.file_name(split), (e.record for e in examples))

    def write_predictions(self, answers: Mapping[QuestionId, str], path: Path) -> None:
        write_json(path, dict(answers))


def read_references(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, fit to score answers against."""
    return _read(path, SCORING_FIELDS)


def _read(path: Path, fields: Mapping[str, type]) -> list[dict[str, Any]]:
    rows = check_rows(str(path), read_jsonl(path), fields)
    for row in rows:
        where = f"{path} question {row['id']} output"
        check_object(where, row["output"], {"answer": list})
        if not all(isinstance(answer, str) for answer in row["output"]["answer"]):
            raise UserError(f"{where}: every answer must be a string")
    return rows


VIQUAE = Viquae()
