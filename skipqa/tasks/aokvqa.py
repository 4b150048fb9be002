"""A-OKVQA: direct answers and multiple choice on COCO 2017 photos, by equality of raw strings.

Nothing is normalised: case, spaces, articles and a final period all matter. A system that answers
in free text takes part in multiple choice through `nearest_choice`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from skipqa.errors import UserError
from skipqa.files import check_object, check_rows, read_json, read_json_with_repeats, write_json
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.okvqa import Annotations, normalise
from skipqa.tasks.predictions import with_repeats
from skipqa.tasks.scores import MismatchedIds, Pairing, Report, named
from skipqa.tasks.task import (
    FileScorer,
    Predictions,
    TaskDefaults,
    official_file,
    require_split,
)

Setting = Literal["multiple_choice", "direct_answer"]
SETTINGS: tuple[Setting, ...] = ("multiple_choice", "direct_answer")
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


def direct_answer(prediction: str, direct_answers: Sequence[str]) -> float:
    """A third of a point for every person who gave this very answer, at most one."""
    return min(1.0, sum(prediction == answer for answer in direct_answers) / 3)


def multiple_choice(prediction: str, choices: Sequence[str], correct_choice_idx: int) -> float:
    """The prediction is the text of a choice; an index or a letter never matches."""
    return float(prediction == choices[correct_choice_idx])


def setting_score(
    dataset: Sequence[Mapping[str, Any]],
    predictions: Mapping[str, str],
    setting: str,
    strict: bool = True,
) -> float:
    """Mean x 100 of one setting; a question without a prediction scores 0.

    `strict` is the official function's default and raises `MismatchedIds` for such a
    question or for a prediction that is no choice; the official command is not strict.
    """
    questions = _scored_questions(dataset, setting)
    if not questions:
        raise UserError(f"no question counts for {setting}")
    if strict:
        if missing := tuple(i for i in questions if i not in predictions):
            raise MismatchedIds(f"{setting}: {named('questions without a prediction', missing)}")
        if setting == "multiple_choice":
            invalid = tuple(i for i, q in questions.items() if predictions[i] not in q["choices"])
            if invalid:
                raise MismatchedIds(f"{named('predictions that are no choice', invalid)}")
    scores = [
        _score(predictions[i], question, setting) if i in predictions else 0.0
        for i, question in questions.items()
    ]
    return sum(scores) / len(scores) * 100


def evaluate(
    dataset: Sequence[Mapping[str, Any]], predictions: Mapping[str, Mapping[str, str]]
) -> Report:
    """The official command: each setting that at least one prediction names, not strict."""
    scores: dict[str, float] = {}
    notes: list[str] = []
    pairing = Pairing.of(predictions, (question["question_id"] for question in dataset))
    if pairing.unknown:
        notes.append(f"{named('unknown ids', pairing.unknown)}: ignored")
    for setting in SETTINGS:
        chosen = {i: given[setting] for i, given in predictions.items() if setting in given}
        if not chosen:
            continue
        scores[setting] = setting_score(dataset, chosen, setting, strict=False)
        questions = _scored_questions(dataset, setting)
        if missing := tuple(i for i in questions if i not in chosen):
            notes.append(f"{setting}: {named('questions without a prediction', missing)}: score 0")
        if setting == "multiple_choice":
            invalid = tuple(
                i for i, q in questions.items() if i in chosen and chosen[i] not in q["choices"]
            )
            if invalid:
                notes.append(f"{named('predictions that are no choice', invalid)}: score 0")
    return Report("aokvqa", scores, pairing, tuple(notes))


def nearest_choice(answer: str, choices: Sequence[str]) -> str:
    """The choice that an answer in free text most probably means.

    The one that is equal after VQA normalisation; else the one that shares the most words with the
    answer (F1 of the two bags of words), then the one spelt most like it, then the first.
    """
    text = normalise(answer)

    def closeness(choice: str) -> tuple[bool, float, float]:
        other = normalise(choice)
        shared = (Counter(text.split()) & Counter(other.split())).total()
        f1 = 2 * shared / max(1, len(text.split()) + len(other.split()))
        return text == other, f1, SequenceMatcher(None, text, other, autojunk=False).ratio()

    return max(choices, key=closeness)


@dataclass(frozen=True)
class Aokvqa(TaskDefaults):
    name: str
    setting: Setting
    title: str = "A-OKVQA"
    splits: tuple[str, ...] = ("train", "val", "test", "test_w_ans")
    default_split: str = "val"

    @property
    def has_command(self) -> bool:
        return self.setting == "direct_answer"

    def with_options(
        self,
        multiple_choice: Annotated[
            bool, "Take each answer for the choice nearest to it; default: direct answers"
        ] = False,
    ) -> Self:
        if not multiple_choice:
            return self
        return replace(self, name="aokvqa-multiple-choice", setting="multiple_choice")

    def files(self, folder: Path, split: str) -> tuple[Path]:
        return (folder / f"aokvqa_v1p0_{split}.json",)

    def load(self, folder: Path, split: str, images: Path | None = None) -> list[Example]:
        """The questions that count in this setting: those with difficult direct answers count in
        multiple choice only."""
        require_split("aokvqa", split, self.splits)
        path = official_file("aokvqa", folder, self.files(folder, split)[0].name)
        rows = check_rows(str(path), read_json(path), QUESTION_FIELDS)
        photos = f"{_IMAGES_OF.get(split, split)}2017"
        return [self._example(row, photos, split) for row in rows if self._counts(row)]

    def _counts(self, row: Mapping[str, Any]) -> bool:
        is_difficult = row.get("difficult_direct_answer", False)
        return self.setting == "multiple_choice" or is_difficult is False

    def _example(self, row: dict[str, Any], photos: str, split: str) -> Example:
        return Example(
            id=row["question_id"],
            image=f"{photos}/{row['image_id']:012d}.jpg",
            question=row["question"],
            answers=self._answers(row),
            choices=tuple(row["choices"]),
            split=split,
            source="aokvqa",
            record=row,
        )

    def _answers(self, row: Mapping[str, Any]) -> dict[str, float]:
        if self.setting == "multiple_choice":
            right = row.get("correct_choice_idx")
            return {} if right is None else {row["choices"][right]: 1.0}
        given = row.get("direct_answers", ())
        return {answer: direct_answer(answer, given) for answer in given}

    def prediction(self, example: Example, answer: str) -> str:
        if self.setting == "multiple_choice":
            return nearest_choice(answer, example.choices)
        return answer

    def score(self, example: Example, prediction: str) -> float:
        self.check(example)
        return _score(prediction, example.record, self.setting)

    def report(self, examples: Sequence[Example], predictions: Mapping[QuestionId, str]) -> Report:
        setting: str = self.setting
        given = {str(e.id): {setting: predictions[e.id]} for e in examples}
        return evaluate([e.record for e in examples], given)

    def file_scorers(self) -> dict[str, FileScorer]:
        return {"aokvqa": score_files}

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        write_json(self.files(folder, split)[0], [dict(e.record) for e in examples])

    def write_predictions(self, predictions: Mapping[QuestionId, str], path: Path) -> None:
        write_json(path, {id: {self.setting: answer} for id, answer in predictions.items()})


def score_files(predictions: Predictions, annotations: Annotations) -> Report:
    """Both settings, as far as the predictions have them."""
    given, repeats = read_json_with_repeats(predictions)
    check_object(str(predictions), given, {})
    for question_id, answers in given.items():
        check_object(f"{predictions} question {question_id!r}", answers, {})
    if not any(setting in answers for answers in given.values() for setting in SETTINGS):
        raise UserError(f"{predictions}: no prediction has {' or '.join(SETTINGS)}")
    return with_repeats(evaluate(read_scored_questions(annotations), given), repeats)


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


def _scored_questions(
    dataset: Sequence[Mapping[str, Any]], setting: str
) -> dict[str, Mapping[str, Any]]:
    """All questions for multiple choice; for direct answers only those marked not difficult."""
    return {
        question["question_id"]: question
        for question in dataset
        if setting == "multiple_choice" or question["difficult_direct_answer"] is False
    }


def _score(prediction: str, question: Mapping[str, Any], setting: str) -> float:
    if setting == "multiple_choice":
        return multiple_choice(prediction, question["choices"], question["correct_choice_idx"])
    return direct_answer(prediction, question["direct_answers"])


DIRECT_ANSWER = Aokvqa("aokvqa", "direct_answer")
MULTIPLE_CHOICE = DIRECT_ANSWER.with_options(multiple_choice=True)
