"""FVQA: questions on COCO photos, each with the fact of a knowledge base that supports its answer.

Enters: {train,val}.jsonl with {train,val}.zip of the photos; a row is {question_id, image,
question, answer, from, fact, kb}. The type of a question is where its answer comes from (`from`),
its category the knowledge base of the fact.

The score of a question is that of `skipqa eval vqa` for a row with one answer: equality after the
normalisation of OK-VQA, which drops articles and punctuation and keeps singular and plural apart.
That is our choice. The rule of the paper is top-1 accuracy, prediction and answer being the same
string once the package `inflect` has made singular and plural equal; `top1` in the report follows
it, with the normalisation of OK-VQA and our own rules for plurals. No official scorer was at hand
to check against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skipqa.errors import UserError
from skipqa.files import Fields, check_rows, read_jsonl, write_json, write_jsonl
from skipqa.tasks import jsonl
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.facts import differ_in_number_alone
from skipqa.tasks.okvqa import normalise
from skipqa.tasks.predictions import answers_in_order, with_repeats
from skipqa.tasks.scores import Pairing, Report
from skipqa.tasks.task import (
    FileScorer,
    Predictions,
    References,
    RowsPerSplit,
    official_file,
    require_split,
)

FIELDS: Fields = {**jsonl.FIELDS, **dict.fromkeys(("answer", "from", "fact", "kb"), str)}


def top1(prediction: str, answer: str) -> float:
    """Whether they are equal, singular or plural."""
    return float(differ_in_number_alone(normalise(prediction), normalise(answer)))


def evaluate(predictions: Sequence[str], answers: Sequence[str]) -> Report:
    """Top-1 accuracy in percent; predictions are in the order of the answers."""
    pairing = Pairing.of(range(len(predictions)), range(len(answers)))
    pairing.require_equal_sets()
    if not answers:
        raise UserError("no questions to score")
    right = sum(map(top1, predictions, answers))
    return Report("fvqa", {"top1": 100 * right / len(answers)}, pairing)


class Fvqa(RowsPerSplit, jsonl.JsonLines):
    name = "fvqa"
    title = "FVQA"
    splits = ("train", "val")
    default_split = "val"

    def images(self, folder: Path, split: str) -> Path:
        return folder / f"{split}.zip"

    def load(self, folder: Path, split: str, images: Path | None = None) -> list[Example]:
        require_split(self.name, split, self.splits)
        path = official_file(self.name, folder, self.files(folder, split)[0].name)
        return [
            replace(
                jsonl.example_of(row, f"{path} row {number}"),
                type=row["from"],
                category=row["kb"],
                split=split,
                source=self.name,
            )
            for number, row in enumerate(_read_rows(path))
        ]

    def report(self, examples: Sequence[Example], predictions: Mapping[QuestionId, str]) -> Report:
        answers = [example.record["answer"] for example in examples]
        return evaluate([predictions[example.id] for example in examples], answers)

    def file_scorers(self) -> dict[str, FileScorer]:
        return {self.name: score_files}

    def write_predictions(self, predictions: Mapping[QuestionId, str], path: Path) -> None:
        write_json(path, {str(id): answer for id, answer in predictions.items()})


def score_files(predictions: Predictions, references: References) -> Report:
    rows = _read_rows(references)
    answers, repeats = answers_in_order(predictions, [str(row["question_id"]) for row in rows])
    return with_repeats(evaluate(answers, [row["answer"] for row in rows]), repeats)


def write_facts(folder: Path, path: Path) -> int:
    """The facts of all splits as a corpus for `skipqa index build`, each once; how many they are.

    The id of a fact is that of the first question it supports: as fvqa.jsonl, its passages are
    fvqa:ID.
    """
    rows = [
        row
        for split in FVQA.splits
        for row in _read_rows(official_file(FVQA.name, folder, FVQA.files(folder, split)[0].name))
    ]
    id_of: dict[str, QuestionId] = {}
    for row in rows:
        id_of.setdefault(row["fact"], row["question_id"])
    write_jsonl(path, ({"id": id, "text": fact} for fact, id in id_of.items()))
    return len(id_of)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    return check_rows(str(path), read_jsonl(path), FIELDS)


FVQA = Fvqa()
