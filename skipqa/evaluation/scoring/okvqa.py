"""OK-VQA and VQAv2: soft accuracy against ten human answers.

Follows the VQA evaluation code as it stands since 2021, quirks included, because a
published number contains them. It runs on Python 2, so two places differ from what Python
3 would do by itself: lower-casing and the rounding of exact halves.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from typing import Any

from skipqa.errors import UserError
from skipqa.evaluation.scoring.report import Pairing, Report, named
from skipqa.evaluation.scoring.text import CONTRACTIONS, NUMBER_WORDS

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
ARTICLES = frozenset({"a", "an", "the"})
MAX_PERIODS = 32  # the official code passes re.UNICODE, which is 32, where a count belongs

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
    prediction = _tidy(prediction)
    records = [{**record, "answer": _tidy(record["answer"])} for record in records]
    if len({record["answer"] for record in records}) > 1:  # else both sides stay as they are
        prediction = normalise(prediction)
        records = [{**record, "answer": normalise(record["answer"])} for record in records]
    matching = [record for record in records if record["answer"] == prediction]
    credits = [min(1.0, sum(other != left_out for other in matching) / 3) for left_out in records]
    return sum(credits) / len(credits)


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
