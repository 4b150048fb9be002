"""Questions in JSON Lines, in a layout that anybody can write.

A line is `{question_id, image, question, answers {text: score}}` or `{…, answer}`, with
`category`, `type` (what the question needs), `subset` (one or a list), `popularity`, `gold` (ids of
passages that hold the answer, `hops` if several steps need one each) and `fact` (a sentence; a
passage that states it counts as gold) where they are known. Without a `question_id` the number of
the line is the id. A bad line is reported and skipped. Answers are compared after the normalisation
of OK-VQA; the file need not write them in that form.

`answers` may also count people, as VQAv2's ten annotators, {"brunch": 2, "lunch": 8}. A row with a
whole number above 1 has counts, and so has every row of a file in which all numbers are whole and
some are above 1. An answer that n people gave scores min(1, n/3). The official VQAv2 scorer also
averages over leaving each person out (0.9 for three of ten, not 1); `skipqa eval vqav2` does that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from skipqa.errors import UserError
from skipqa.files import Fields, check_object, parse_json, read_text
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.okvqa import normalise
from skipqa.tasks.photos import Photos
from skipqa.tasks.scores import Report
from skipqa.tasks.task import TaskDefaults

FIELDS: Fields = {"question_id": (int, str), "image": str, "question": str}


class JsonLines(TaskDefaults):
    """The score is the one that the file gives to an answer."""

    def score(self, example: Example, prediction: str) -> float:
        return float(example.answers.get(normalise(prediction), 0))

    def report(
        self, examples: Sequence[Example], predictions: Mapping[QuestionId, str]
    ) -> Report | None:
        """There is no official one."""
        return None


JSONL = JsonLines()


def read(path: Path, photos: Photos) -> tuple[list[Example], list[str]]:
    """The examples that can be asked, and one line about each that cannot."""
    examples: dict[QuestionId, Example] = {}
    lines = {n: line for n, line in enumerate(read_text(path).split("\n"), 1) if line.strip()}
    rows, bad = _parsed(lines)
    counted = has_counts(rows.values())
    for number, row in rows.items():
        try:
            example = example_of(row, f"line {number}", number, counted=counted)
            if example.image not in photos:
                raise UserError(f"line {number}: no photo {example.image!r}")
            if (first := examples.get(example.id)) is not None:
                raise UserError(
                    f"line {number}: question {example.id} is already on line {first.line}"
                )
        except UserError as error:
            bad[number] = str(error)
        else:
            examples[example.id] = example
    told = [bad[number] for number in sorted(bad)]
    if not examples:
        raise UserError(f"{path} holds no usable question; {told[0]}")
    return list(examples.values()), told


def parse(line: str, number: int) -> dict[str, Any]:
    """The row of a line, with its `FIELDS`."""
    where = f"line {number}"
    try:
        value = parse_json(line)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if isinstance(value, dict):
        value = {"question_id": number, **value}
    return check_object(where, value, FIELDS)


def _parsed(lines: Mapping[int, str]) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
    """The rows by their line, and what is wrong with the others."""
    rows: dict[int, dict[str, Any]] = {}
    bad: dict[int, str] = {}
    for number, line in lines.items():
        try:
            rows[number] = parse(line, number)
        except UserError as error:
            bad[number] = str(error)
    return rows, bad


def has_counts(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether `answers` count people: all numbers are whole, and some are above 1."""

    def numbers() -> Iterator[Any]:
        for row in rows:
            answers = row.get("answers")
            yield from answers.values() if isinstance(answers, dict) else ()

    given = list(numbers())
    return all(type(number) is int for number in given) and any(n > 1 for n in given)


def example_of(
    value: Mapping[str, Any], where: str, line: int | None = None, *, counted: bool = False
) -> Example:
    """The example of a row whose `FIELDS` are known to be there; `counted` if `answers` are known
    to be counts."""
    if "answers" in value:
        given = check_object(where, value, {"answers": dict})["answers"]
        counted = counted or has_counts([value])
        answers = _of_counts(given, where) if counted else _with_normalised(given, where)
    else:
        answers = {normalise(check_object(where, value, {"answer": str})["answer"]): 1.0}
    if not answers:
        raise UserError(f"{where}: no answers")
    popularity = value.get("popularity")
    if not isinstance(popularity, int | float | str | None):
        raise UserError(f"{where}: 'popularity' must be a number or a name")
    fact = value.get("fact")
    if not isinstance(fact, str | None):
        raise UserError(f"{where}: 'fact' must be a sentence")
    category, type_, subset = value.get("category"), value.get("type"), value.get("subset") or []
    return Example(
        id=value["question_id"],
        image=value["image"],
        question=value["question"],
        answers=answers,
        category=None if category is None else str(category),
        type=None if type_ is None else str(type_),
        subsets=tuple(map(str, subset if isinstance(subset, list) else [subset])),
        popularity=popularity,
        gold=_gold(where, value),
        fact=fact,
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


def _of_counts(given: Mapping[str, Any], where: str) -> dict[str, float]:
    """A third of a point for everyone who gave the answer, in whatever spelling, at most one."""
    people: Counter[str] = Counter()
    for text, count in given.items():
        if type(count) is not int or count < 0:
            raise UserError(f"{where}: the count of {text!r} must be a whole number of people")
        people[normalise(text)] += count
    return {text: min(1.0, count / 3) for text, count in people.items()}


def _gold(where: str, value: Mapping[str, Any]) -> tuple[frozenset[str], ...]:
    gold = value.get("gold") or []
    steps = value.get("hops") or ([gold] if gold else [])
    for ids in (gold, *steps) if isinstance(steps, list) else (steps,):
        if not isinstance(ids, list) or not all(isinstance(passage, str) for passage in ids):
            raise UserError(f"{where}: 'gold' must be a list of passage ids, 'hops' one per step")
    return tuple(map(frozenset, steps))
