"""Why an answer is wrong: one bucket for each, by rules on its record.

Enters: records of a run, and the examples that were asked. Leaves: for every wrong answer the one
bucket it is in. What is doubtful, counts or needs reading text comes first, as no stage of the
pathway is to blame; then the fast path; then the place where the gold passage was lost, as far
along the pathway as it came. A record of an older version that lacks a field leaves what follows
unknown. It asks nothing again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from skipqa.errors import UserError
from skipqa.evaluation.records import Record, prediction_of
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.facts import content, differ_in_number_alone, states

WRONG = 0.5  # an answer with a lower score counts as wrong
MISSED = 0.5  # of the thing's box: less of it kept, and something else was looked at
COUNTS = re.compile(r"\bhow (many|much)\b|\bnumber of\b|\bcount\b", re.IGNORECASE)
NEEDS_TEXT = re.compile(
    r"\b(says?|written|writing|spells?|letters?|brand|logo|label|slogan|licen[cs]e plate|"
    r"(words?|text|numbers?) on)\b",
    re.IGNORECASE,
)


class Bucket(StrEnum):
    """In the order in which the rules are tried."""

    DOUBTFUL = "doubtful"
    COUNTING = "counting"
    TEXT = "text in the image"
    DRAFTED = "drafted wrongly"
    MISREAD = "misread"
    NOT_READ = "not read"
    NOT_VERIFIED = "not verified"
    SECOND_HOP = "second hop"
    WRONG_PLACE = "wrong place"
    NOT_SEEN = "not seen"
    NOT_FOUND = "not found"
    CONFUSED = "confused"
    UNKNOWN = "unknown"


MEANING: Mapping[Bucket, str] = {
    Bucket.DOUBTFUL: "somebody gave this answer, or it is an accepted one in other words",
    Bucket.COUNTING: "the question asks how many",
    Bucket.TEXT: "the answer is written in the image",
    Bucket.DRAFTED: "the drafter was confident and wrong; nothing was looked up",
    Bucket.MISREAD: "a gold passage was read, the answer is another",
    Bucket.NOT_READ: "a gold passage was kept, but had no edge or came too late to be read",
    Bucket.NOT_VERIFIED: "a gold passage was retrieved and rejected",
    Bucket.SECOND_HOP: "passages of some steps were retrieved, not of all",
    Bucket.WRONG_PLACE: "less than half of the thing's box was kept",
    Bucket.NOT_SEEN: "no region and no word has the thing's name",
    Bucket.NOT_FOUND: "the thing was named, its passage not retrieved",
    Bucket.CONFUSED: "no passage is needed; the thing's name was among those seen, not the answer",
    Bucket.UNKNOWN: "no gold passage is known, or the record does not tell",
}


def is_wrong(record: Record) -> bool:
    return bool(record["score"] < WRONG)


def bucket_of(record: Record, example: Example) -> Bucket:
    """Of a wrong answer."""
    if record["score"] > 0 or _is_accepted_otherwise(prediction_of(record), example):
        return Bucket.DOUBTFUL
    if not example.gold and not example.fact:  # else a passage tells how many, and what is written
        if COUNTS.search(example.question):
            return Bucket.COUNTING
        if (example.type or record.get("type")) == "ocr" or NEEDS_TEXT.search(example.question):
            return Bucket.TEXT
    if record["route"] == "draft":
        return Bucket.DRAFTED
    return _lost_at(record, example)


def _lost_at(record: Record, example: Example) -> Bucket:
    """How far along the pathway a gold passage came; before that, what was looked at."""
    if example.gold and "retrieved" in record:
        if _has_all(example, record.get("evidence", [])):
            if "read" not in record:
                return Bucket.UNKNOWN
            return Bucket.MISREAD if _has_all(example, record["read"]) else Bucket.NOT_READ
        if _has_all(example, record["retrieved"]):
            return Bucket.NOT_VERIFIED
        if any(not step.isdisjoint(record["retrieved"]) for step in example.gold):
            return Bucket.SECOND_HOP
    elif example.fact and record.get("recall_kept"):
        return Bucket.MISREAD
    if record.get("box_kept", 1.0) < MISSED:
        return Bucket.WRONG_PLACE
    if record.get("seen") is False:
        return Bucket.NOT_SEEN
    if example.gold or example.fact:
        return Bucket.NOT_FOUND
    return Bucket.CONFUSED if record.get("seen") else Bucket.UNKNOWN


def _has_all(example: Example, ids: Sequence[str]) -> bool:
    return all(not step.isdisjoint(ids) for step in example.gold)


def _is_accepted_otherwise(answer: str, example: Example) -> bool:
    """An accepted answer in another number, or with more words around it."""
    return any(
        differ_in_number_alone(answer, accepted)
        or (bool(content(accepted)) and states(accepted, answer))
        for accepted, score in example.answers.items()
        if score >= WRONG
    )


def assigned(
    records: Mapping[QuestionId, Record], examples: Mapping[QuestionId, Example]
) -> dict[QuestionId, Bucket]:
    """The bucket of every wrong answer."""
    wrong = {question: record for question, record in records.items() if is_wrong(record)}
    lacking = [question for question in wrong if question not in examples]
    if lacking:
        raise UserError(f"the questions lack {len(lacking)} of the run's, first {lacking[0]}")
    return {question: bucket_of(record, examples[question]) for question, record in wrong.items()}


def table(buckets: Mapping[QuestionId, Bucket], asked: int) -> list[dict[str, Any]]:
    """A row per bucket, in their order, empty ones too."""
    counts = Counter(buckets.values())
    return [
        {
            "bucket": str(bucket),
            "wrong": counts[bucket],
            "of_wrong": counts[bucket] / max(1, len(buckets)),
            "of_asked": counts[bucket] / max(1, asked),
            "meaning": MEANING[bucket],
        }
        for bucket in Bucket
    ]
