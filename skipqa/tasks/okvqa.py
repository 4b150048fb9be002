"""OK-VQA: knowledge questions on COCO photos, by soft accuracy against ten human answers.

VQAv2 shares the layout and the rule (`vqav2.py`). Enters: a questions file and an annotations
file. The rule follows the VQA evaluation code as it stands since 2021, quirks included, because a
published number contains them. It runs on Python 2, so two places differ from what Python
3 would do by itself: lower-casing and the rounding of exact halves.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from skipqa.errors import UserError
from skipqa.files import Fields, check_object, check_rows, read_json, write_json
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.scores import Pairing, Report, named
from skipqa.tasks.task import (
    FileScorer,
    Predictions,
    TaskDefaults,
    official_file,
    require_split,
)
from skipqa.tasks.text import CONTRACTIONS, NUMBER_WORDS

Annotations = Annotated[Path, "Annotations"]
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
ARTICLES = frozenset({"a", "an", "the"})
MAX_PERIODS = 32  # the official code passes re.UNICODE, which is 32, where a count belongs

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

_DIGIT_COMMA_DIGIT = re.compile(r"\d,\d", re.ASCII)
_PERIOD = re.compile(r"\.(?!\d)", re.ASCII)


def strip_punctuation(text: str) -> str:
    """Delete or blank each mark, judged by the untouched text, then delete loose periods."""
    delete_all = _DIGIT_COMMA_DIGIT.search(text) is not None
    stripped = text
    for mark in PUNCTUATION:
        touches_space = f"{mark} " in text or f" {mark}" in text
        stripped = stripped.replace(mark, "" if delete_all or touches_space else " ")
    return _PERIOD.sub("", stripped, count=MAX_PERIODS)


def normalise_words(text: str) -> str:
    """Lower-case, number words to digits, articles dropped, contractions spelt one way."""
    words = (NUMBER_WORDS.get(word, word) for word in _lower(text).split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


@lru_cache(maxsize=1 << 16)  # ten people give few different answers
def normalise(text: str) -> str:
    """The form in which prediction and answers are compared, unless all people agree."""
    return normalise_words(strip_punctuation(text))


def accuracy(prediction: str, answers: Sequence[str]) -> float:
    """The soft accuracy in [0, 1] of one prediction, each answer given by another person."""
    records = [{"answer_id": number, "answer": answer} for number, answer in enumerate(answers)]
    return accuracy_of_records(prediction, records)


def accuracy_of_records(prediction: str, records: Sequence[Mapping[str, Any]]) -> float:
    """As `accuracy`, for answer records of an annotations file.

    A record is left out by comparing whole records, so that records which only their
    `answer_id` could tell apart, and do not carry one, are all left out together.
    """
    compared = _compared_forms(records)
    text = _tidy(prediction) if compared.all_agree else normalise(_tidy(prediction))
    return compared.score(text)


def scored_answers(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Each answer that somebody gave, in the form that is compared -> its soft accuracy."""
    compared = _compared_forms(records)
    texts = dict.fromkeys(record["answer"] for record in compared.records)
    return {text: compared.score(text) for text in texts}


@dataclass(frozen=True, slots=True)
class _Compared:
    """Answer records with their texts in the form that is compared."""

    records: Sequence[Mapping[str, Any]]
    all_agree: bool  # then nothing is normalised, on either side

    def score(self, text: str) -> float:
        matching = [record for record in self.records if record["answer"] == text]
        credits = [min(1.0, sum(o != left_out for o in matching) / 3) for left_out in self.records]
        return sum(credits) / len(credits)


def _compared_forms(records: Sequence[Mapping[str, Any]]) -> _Compared:
    tidy = [{**record, "answer": _tidy(record["answer"])} for record in records]
    if len({record["answer"] for record in tidy}) == 1:
        return _Compared(tidy, all_agree=True)
    normal = [{**record, "answer": normalise(record["answer"])} for record in tidy]
    return _Compared(normal, all_agree=False)


def evaluate(
    results: Sequence[Mapping[str, Any]],
    annotations: Sequence[Mapping[str, Any]],
    benchmark: str = "okvqa",
) -> Report:
    """Overall and per-type accuracy in percent. Raises `MismatchedIds` unless ids are the same.

    A question answered twice counts once, with its last answer.
    """
    pairing = Pairing.of(
        (row["question_id"] for row in results), (row["question_id"] for row in annotations)
    )
    pairing.require_equal_sets()
    if not annotations:
        raise UserError("no questions to score")
    answer_of = {row["question_id"]: row["answer"] for row in results}
    overall: list[float] = []
    by_question_type: dict[str, list[float]] = defaultdict(list)
    by_answer_type: dict[str, list[float]] = defaultdict(list)
    for row in annotations:
        score = accuracy_of_records(answer_of[row["question_id"]], row["answers"])
        overall.append(score)
        by_question_type[row["question_type"]].append(score)
        by_answer_type[row["answer_type"]].append(score)
    return Report(
        benchmark,
        {
            "overall": _percent(overall),
            "perQuestionType": {kind: _percent(s) for kind, s in by_question_type.items()},
            "perAnswerType": {kind: _percent(s) for kind, s in by_answer_type.items()},
        },
        pairing,
        (f"{named('repeated ids', pairing.duplicate)}: the last answer counts",)
        if pairing.duplicate
        else (),
    )


@dataclass(frozen=True)
class CocoVqa(TaskDefaults):
    name: str
    title: str
    prefix: str  # of file names
    categories: Mapping[str, str] = field(default_factory=dict)  # question_type code -> words
    splits: tuple[str, ...] = ("train", "val")
    default_split: str = "val"

    def files(self, folder: Path, split: str) -> tuple[Path, Path]:
        """Questions and annotations."""
        return (
            folder / f"{self.prefix}OpenEnded_mscoco_{split}2014_questions.json",
            folder / f"{self.prefix}mscoco_{split}2014_annotations.json",
        )

    def load(self, folder: Path, split: str, images: Path | None = None) -> list[Example]:
        require_split(self.name, split, self.splits)
        paths = [official_file(self.name, folder, p.name) for p in self.files(folder, split)]
        questions, annotations = read_questions(paths[0]), read_annotations(paths[1])
        annotation_of = {row["question_id"]: row for row in annotations}
        if lost := [q["question_id"] for q in questions if q["question_id"] not in annotation_of]:
            raise UserError(f"{paths[1].name} has no annotation for question {lost[0]}")
        return [self._example(q, annotation_of[q["question_id"]], split) for q in questions]

    def _example(self, row: dict[str, Any], annotation: dict[str, Any], split: str) -> Example:
        kind = annotation["question_type"]
        return Example(
            id=row["question_id"],
            image=f"{split}2014/COCO_{split}2014_{row['image_id']:012d}.jpg",
            question=row["question"],
            answers=scored_answers(annotation["answers"]),
            category=self.categories.get(kind, kind),
            split=split,
            source=self.name,
            record={"question": row, "annotation": annotation},
        )

    def score(self, example: Example, prediction: str) -> float:
        self.check(example)
        return accuracy_of_records(prediction, example.record["annotation"]["answers"])

    def report(self, examples: Sequence[Example], predictions: Mapping[QuestionId, str]) -> Report:
        results = [{"question_id": e.id, "answer": predictions[e.id]} for e in examples]
        return evaluate(results, [e.record["annotation"] for e in examples], self.name)

    def file_scorers(self) -> dict[str, FileScorer]:
        return {self.name: self.score_files}

    def score_files(
        self,
        predictions: Predictions,
        annotations: Annotations,
        questions: Annotated[Path | None, "Questions"] = None,
    ) -> Report:
        """The questions file changes no score; where given, it must be whole."""
        fields: Fields = {"question_id": ID, "answer": str}
        results = check_rows(str(predictions), read_json(predictions), fields)
        references = read_annotations(annotations)
        if questions is not None:
            asked = {row["question_id"] for row in read_questions(questions)}
            ids = (row["question_id"] for row in references)
            if unasked := tuple(id for id in ids if id not in asked):
                raise UserError(f"{questions} lacks {named('annotated questions', unasked)}")
        return evaluate(results, references, self.name)

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        header = {
            "info": {"description": f"part of {self.name}"},
            "data_type": "mscoco",
            "data_subtype": f"{split}2014",
            "license": {},
        }
        questions, annotations = self.files(folder, split)
        asked = [e.record["question"] for e in examples]
        write_json(questions, header | {"task_type": "Open-Ended", "questions": asked})
        answered = [e.record["annotation"] for e in examples]
        write_json(annotations, header | {"annotations": answered})

    def write_predictions(self, predictions: Mapping[QuestionId, str], path: Path) -> None:
        rows = [{"question_id": id, "answer": answer} for id, answer in predictions.items()]
        write_json(path, rows)


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


def _tidy(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def _lower(text: str) -> str:
    """Python 2's lower(): one character for one, without the rules for İ and final sigma."""
    return "".join(character.lower()[0] for character in text)


def _percent(scores: Iterable[float]) -> float:
    """100 x mean, to two decimals; an exact half goes away from zero, as in Python 2."""
    scores = list(scores)
    mean = Decimal(100 * sum(scores) / len(scores))
    return float(mean.quantize(Decimal("0.01"), ROUND_HALF_UP))


OKVQA = CocoVqa(
    name="okvqa",
    title="OK-VQA",
    prefix="",
    categories={
        "one": "Vehicles and Transportation",
        "two": "Brands, Companies and Products",
        "three": "Objects, Material and Clothing",
        "four": "Sports and Recreation",
        "five": "Cooking and Food",
        "six": "Geography, History, Language and Culture",
        "seven": "People and Everyday life",
        "eight": "Plants and Animals",
        "nine": "Science and Technology",
        "ten": "Weather and Climate",
        "other": "Other",
    },
)
