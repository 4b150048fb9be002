"""A-OKVQA: direct answers and multiple choice, by equality of raw strings.

Nothing is normalised: case, spaces, articles and a final period all matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skipqa.errors import UserError
from skipqa.evaluation.scoring.report import MismatchedIds, Pairing, Report, named

SETTINGS = ("multiple_choice", "direct_answer")


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
