"""The layout that OK-VQA shares with VQAv2: a questions file, an annotations file, COCO 2014."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skipqa.data.example import Example, QuestionId
from skipqa.data.official import official_file, require_split
from skipqa.errors import UserError
from skipqa.files import Fields, check_object, check_rows, read_json, write_json

ID = (int, str)
QUESTION_FIELDS: Fields = {"question_id": ID, "image_id": int, "question": str}
ANNOTATION_FIELDS: Fields = {
    "question_id": ID,
    "question_type": str,
    "answer_type": str,
    "answers": list,
}
# The official reader copies these and stops when one is absent.
HEADER: Fields = dict.fromkeys(
    ("info", "task_type", "data_type", "data_subtype", "license"), object
)


@dataclass(frozen=True)
class CocoVqa:
    name: str
    prefix: str  # of file names
    categories: Mapping[str, str] = field(default_factory=dict)  # question_type code -> words
    splits: tuple[str, ...] = ("train", "val")

    def questions_name(self, split: str) -> str:
        return f"{self.prefix}OpenEnded_mscoco_{split}2014_questions.json"

    def annotations_name(self, split: str) -> str:
        return f"{self.prefix}mscoco_{split}2014_annotations.json"

    def load(self, folder: Path, split: str, images: Path) -> list[Example]:
        require_split(self.name, split, self.splits)
        questions = read_questions(official_file(self.name, folder, self.questions_name(split)))
        annotations = read_annotations(
            official_file(self.name, folder, self.annotations_name(split))
        )
        annotation_of = {row["question_id"]: row for row in annotations}
        if lost := [q["question_id"] for q in questions if q["question_id"] not in annotation_of]:
            raise UserError(
                f"{self.annotations_name(split)} has no annotation for question {lost[0]}"
            )
        photos = images / f"{split}2014"
        return [self._example(q, annotation_of[q["question_id"]], photos) for q in questions]

    def _example(self, row: dict[str, Any], annotation: dict[str, Any], photos: Path) -> Example:
        kind = annotation["question_type"]
        return Example(
            question_id=row["question_id"],
            image=photos / f"COCO_{photos.name}_{row['image_id']:012d}.jpg",
            question=row["question"],
            answers=tuple(answer["answer"] for answer in annotation["answers"]),
            category=self.categories.get(kind, kind),
            record={"question": row, "annotation": annotation},
        )

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        header = {
            "info": {"description": f"part of {self.name}"},
            "data_type": "mscoco",
            "data_subtype": f"{split}2014",
            "license": {},
        }
        write_json(
            folder / self.questions_name(split),
            header
            | {"task_type": "Open-Ended", "questions": [e.record["question"] for e in examples]},
        )
        write_json(
            folder / self.annotations_name(split),
            header | {"annotations": [e.record["annotation"] for e in examples]},
        )

    def write_predictions(self, answers: Mapping[QuestionId, str], path: Path) -> None:
        write_json(path, [{"question_id": i, "answer": answer} for i, answer in answers.items()])


def read_questions(path: Path) -> list[dict[str, Any]]:
    contents = check_object(str(path), read_json(path), {**HEADER, "questions": list})
    return check_rows(str(path), contents["questions"], QUESTION_FIELDS)


def read_annotations(path: Path) -> list[dict[str, Any]]:
    contents = check_object(str(path), read_json(path), {"annotations": list})
    rows = check_rows(str(path), contents["annotations"], ANNOTATION_FIELDS)
    seen: set[QuestionId] = set()
    for row in rows:
        where = f"{path} question {row['question_id']}"
        check_rows(where, row["answers"], {"answer": str})
        if not row["answers"]:
            raise UserError(f"{where}: no answers")
        if row["question_id"] in seen:
            raise UserError(f"{where}: annotated twice")
        seen.add(row["question_id"])
    return rows
