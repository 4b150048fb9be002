"""Encyclopedic-VQA: questions on iNaturalist and Landmarks photos, in CSV.

A row has up to five photos; an example takes the first, as published evaluations do, and
keeps the others in its record. Rows have no id: the row number serves.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from skipqa.data.example import Example, QuestionId
from skipqa.data.official import official_file, require_split
from skipqa.errors import UserError
from skipqa.files import check_object, check_rows, read_csv, read_json, write_json

SCORING_COLUMNS = ("question", "answer", "question_type")
COLUMNS = (*SCORING_COLUMNS, "dataset_image_ids", "dataset_name")


class Evqa:
    name = "evqa"
    splits = ("train", "val", "test")

    def file_name(self, split: str) -> str:
        return f"{split}.csv"

    def load(self, folder: Path, split: str, images: Path) -> list[Example]:
        require_split(self.name, split, self.splits)
        path = official_file(self.name, folder, self.file_name(split))
        inaturalist = _inaturalist_names(images / "inaturalist")
        return [
            Example(
                question_id=number,
                image=_image(images, row["dataset_name"], image_id, inaturalist),
                question=row["question"],
                answers=tuple(row["answer"].split("|")),
                category=row["question_type"],
                record=row,
            )
            for number, row in enumerate(read_csv(path, COLUMNS))
            for image_id in (row["dataset_image_ids"].split("|")[0],)
        ]

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        if not examples:
            raise UserError("no examples to write")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.file_name(split)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(examples[0].record), lineterminator="\n")
            writer.writeheader()
            writer.writerows(example.record for example in examples)

    def write_predictions(self, answers: Mapping[QuestionId, str], path: Path) -> None:
        write_json(path, {str(number): answer for number, answer in answers.items()})


def _image(images: Path, source: str, image_id: str, inaturalist: Mapping[str, str]) -> Path:
    if source == "inaturalist":
        return images / source / inaturalist.get(image_id, f"{image_id}.jpg")
    return images / source / Path(*image_id[:3]) / f"{image_id}.jpg"  # Landmarks: a/b/c/abc….jpg


def _inaturalist_names(folder: Path) -> dict[str, str]:
    """id -> path, from the annotation files that come with the iNaturalist 2021 photos."""
    names: dict[str, str] = {}
    for split in ("train", "val"):
        path = folder / f"{split}.json"
        if path.is_file():
            contents = check_object(str(path), read_json(path), {"images": list})
            rows = check_rows(str(path), contents["images"], {"id": int, "file_name": str})
            names |= {str(row["id"]): row["file_name"] for row in rows}
    return names


EVQA = Evqa()
