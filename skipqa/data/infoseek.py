"""InfoSeek: questions about Wikipedia entities on OVEN photos, in JSON Lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skipqa.data.example import Example, QuestionId
from skipqa.data.official import official_file, require_split
from skipqa.errors import UserError
from skipqa.files import Fields, check_rows, read_jsonl, write_jsonl

QUESTION_FIELDS = {"data_id": str, "image_id": str, "question": str}
SCORING_FIELDS: Fields = {"data_id": str, "data_split": str, "answer_eval": (list, dict)}
QTYPE_FIELDS = {"data_id": str, "question_type": str}
IMAGE_SUFFIXES = (".jpg", ".JPEG", ".jpeg", ".png")  # OVEN keeps each source's own


class InfoSeek:
    name = "infoseek"
    splits = ("train", "val", "test", "human")

    def file_name(self, split: str) -> str:
        return f"infoseek_{split}.jsonl"

    def qtypes_name(self, split: str) -> str:
        return f"infoseek_{split}_qtype.jsonl"

    def load(self, folder: Path, split: str, images: Path) -> list[Example]:
        """The category is the question type where its file, published for val only, is there."""
        require_split(self.name, split, self.splits)
        path = official_file(self.name, folder, self.file_name(split))
        qtypes = folder / self.qtypes_name(split)
        type_of = read_question_types(qtypes) if qtypes.is_file() else {}
        return [
            Example(
                question_id=row["data_id"],
                image=_find_image(images, row["image_id"]),
                question=row["question"],
                answers=tuple(row.get("answer", ())),
                category=type_of.get(row["data_id"], ""),
                record=row,
            )
            for row in check_rows(str(path), read_jsonl(path), QUESTION_FIELDS)
        ]

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        write_jsonl(folder / self.file_name(split), (e.record for e in examples))
        if any(e.category for e in examples):
            write_jsonl(
                folder / self.qtypes_name(split),
                ({"data_id": e.question_id, "question_type": e.category} for e in examples),
            )

    def write_predictions(self, answers: Mapping[QuestionId, str], path: Path) -> None:
        write_jsonl(path, ({"data_id": i, "prediction": text} for i, text in answers.items()))


def read_references(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that has answers, fit to score against."""
    return check_rows(str(path), read_jsonl(path), SCORING_FIELDS)


def read_question_types(path: Path) -> dict[str, str]:
    rows = check_rows(str(path), read_jsonl(path), QTYPE_FIELDS)
    return {row["data_id"]: row["question_type"] for row in rows}


def require_types(references: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> None:
    untyped = [row["data_id"] for row in references if row["data_id"] not in types]
    if untyped:
        raise UserError(
            f"{len(untyped)} references have no question type (first: {untyped[0]!r}): "
            "the two files belong to different splits"
        )


def _find_image(images: Path, image_id: str) -> Path:
    candidates = [images / f"{image_id}{suffix}" for suffix in IMAGE_SUFFIXES]
    return next((path for path in candidates if path.is_file()), candidates[0])


INFOSEEK = InfoSeek()
