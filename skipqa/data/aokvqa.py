"""A-OKVQA: questions with four choices and ten direct answers on COCO 2017 photos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skipqa.data.example import Example, QuestionId
from skipqa.data.official import official_file, require_split
from skipqa.errors import UserError
from skipqa.files import check_rows, read_json, write_json

QUESTION_FIELDS = {"question_id": str, "image_id": int, "question": str, "choices": list}
# The public test file has none of these.
SCORING_FIELDS = {
    "question_id": str,
    "choices": list,
    "correct_choice_idx": int,
    "direct_answers": list,
    "difficult_direct_answer": object,
}
_IMAGES_OF = {"test_w_ans": "test"}


class Aokvqa:
    name = "aokvqa"
    splits = ("train", "val", "test", "test_w_ans")

    def file_name(self, split: str) -> str:
        return f"aokvqa_v1p0_{split}.json"

    def load(self, folder: Path, split: str, images: Path) -> list[Example]:
        require_split(self.name, split, self.splits)
        path = official_file(self.name, folder, self.file_name(split))
        subset = f"{_IMAGES_OF.get(split, split)}2017"
        return [
            Example(
                question_id=row["question_id"],
                image=images / subset / f"{row['image_id']:012d}.jpg",
                question=row["question"],
                answers=tuple(row.get("direct_answers", ())),
                record=row,
            )
            for row in check_rows(str(path), read_json(path), QUESTION_FIELDS)
        ]

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        write_json(folder / self.file_name(split), [dict(e.record) for e in examples])

    def write_predictions(self, answers: Mapping[QuestionId, str], path: Path) -> None:
        """Direct answers; a multiple-choice file has the key `multiple_choice` instead."""
        write_json(path, {i: {"direct_answer": answer} for i, answer in answers.items()})


def read_scored_questions(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that has answers, fit to score against."""
    rows = check_rows(str(path), read_json(path), SCORING_FIELDS)
    for row in rows:
        if not 0 <= row["correct_choice_idx"] < len(row["choices"]):
            raise UserError(
                f"{path} question {row['question_id']}: correct_choice_idx "
                f"{row['correct_choice_idx']} is not one of {len(row['choices'])} choices"
            )
    return rows


AOKVQA = Aokvqa()
