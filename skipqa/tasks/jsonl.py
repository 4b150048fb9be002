"""Questions in JSON Lines, in a layout that anybody can write.

A line is `{question_id, image, question, answers {text: score}}` or `{…, answer}`, with
`category`, `subset` (one or a list), `popularity` and `gold` (ids of passages that hold the answer,
`hops` if several steps need one each) where they are known. A bad line is reported and skipped.
Answers are compared after the normalisation of OK-VQA; the file need not write them in that form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skipqa.errors import UserError
from skipqa.files import Fields, check_object, parse_json, read_text
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.okvqa import normalise
from skipqa.tasks.photos import Photos
from skipqa.tasks.task import TaskDefaults

FIELDS: Fields = {"question_id": (int, str), "image": str, "question": str}


class JsonLines(TaskDefaults):
    """The score is the one that the file gives to an answer."""

    def score(self, example: Example, prediction: str) -> float:
        return float(example.answers.get(normalise(prediction), 0))

    def report(self, examples: Sequence[Example], predictions: Mapping[QuestionId, str]) -> None:
        """There is no official one."""


JSONL = JsonLines()


def read(path: Path, photos: Photos) -> tuple[list[Example], list[str]]:
    """The examples that can be asked, and one line about each that cannot."""
    examples: dict[QuestionId, Example] = {}
    bad: list[str] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            example = parse(line, number)
            if example.image not in photos:
                raise UserError(f"line {number}: no photo {example.image!r}")
            if (first := examples.get(example.id)) is not None:
                raise UserError(
                    f"line {number}: question {example.id} is already on line {first.line}"
                )
        except UserError as error:
            bad.append(str(error))
        else:
            examples[example.id] = example
    if not examples:
        raise UserError(f"{path} holds no usable question; {bad[0]}")
    return list(examples.values()), bad


def parse(line: str, number: int) -> Example:
    where = f"line {number}"
    try:
        value = parse_json(line)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return example_of(check_object(where, value, FIELDS), where, number)


def example_of(value: Mapping[str, Any], where: str, line: int | None = None) -> Example:
    """The example of a row whose `FIELDS` are known to be there."""
    if "answers" in value:
        answers = _with_normalised(check_object(where, value, {"answers": dict})["answers"], where)
    else:
        answers = {normalise(check_object(where, value, {"answer": str})["answer"]): 1.0}
    if not answers:
        raise UserError(f"{where}: no answers")
    popularity = value.get("popularity")
    if not isinstance(popularity, int | float | str | None):
        raise UserError(f"{where}: 'popularity' must be a number or a name")
    category, subset = value.get("category"), value.get("subset") or []
    return Example(
        id=value["question_id"],
        image=value["image"],
        question=value["question"],
        answers=answers,
        category=None if category is None else str(category),
        subsets=tuple(map(str, subset if isinstance(subset, list) else [subset])),
        popularity=popularity,
        gold=_gold(where, value),
        record=value,
        line=line,
    )


def _with_normalised(given: Mapping[str, Any], where: str) -> dict[str, float]:
    """The answers as given, and in the form that is compared; of several scores the best counts."""
    for text, score in given.items():
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
            raise UserError(f"{where}: the score of {text!r} must be a number between 0 and 1")
    answers = dict(given)
    for text, score in given.items():
        compared = normalise(text)
        answers[compared] = max(score, answers.get(compared, score))
    return answers


def _gold(where: str, value: Mapping[str, Any]) -> tuple[frozenset[str], ...]:
    gold = value.get("gold") or []
    steps = value.get("hops") or ([gold] if gold else [])
    for ids in (gold, *steps) if isinstance(steps, list) else (steps,):
        if not isinstance(ids, list) or not all(isinstance(passage, str) for passage in ids):
            raise UserError(f"{where}: 'gold' must be a list of passage ids, 'hops' one per step")
    return tuple(map(frozenset, steps))
