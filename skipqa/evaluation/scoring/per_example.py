"""The official score of one answer to an example of any data set, in [0, 1].

What the harness averages and bootstraps. Official aggregates over a whole split come from
each benchmark's `evaluate`, which also knows about ids that do not pair up.
"""

from __future__ import annotations

from skipqa.data import Example
from skipqa.errors import UserError
from skipqa.evaluation.scoring import aokvqa, evqa, infoseek, okvqa, viquae


def score(data_set: str, example: Example, answer: str) -> float:
    """Direct answers for A-OKVQA; exact match for Encyclopedic-VQA and ViQuAE."""
    if not example.answers:
        raise UserError(f"question {example.question_id}: its split keeps the answers back")
    match data_set:
        case "okvqa" | "vqav2":
            return okvqa.accuracy_of_records(answer, example.record["annotation"]["answers"])
        case "aokvqa":
            return aokvqa.direct_answer(answer, example.answers)
        case "infoseek":
            return infoseek.score(answer, example.category, example.record["answer_eval"])
        case "evqa":
            return evqa.exact_match(answer, example.answers, example.category)
        case "viquae":
            return viquae.exact_match(answer, example.answers)
    raise UserError(f"no score for the data set {data_set!r}")
