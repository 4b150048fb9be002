"""Scores from files in the official layouts: paths enter, a `Report` leaves.

Reading and checking a file is `skipqa.data`'s work, the score is each benchmark's module;
here they meet. Whatever is wrong with a file is a `UserError` that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skipqa.data import aokvqa as aokvqa_data
from skipqa.data import coco_vqa as coco_vqa_data
from skipqa.data import evqa as evqa_data
from skipqa.data import infoseek as infoseek_data
from skipqa.data import viquae as viquae_data
from skipqa.errors import UserError
from skipqa.evaluation.scoring import aokvqa, evqa, infoseek, okvqa, viquae
from skipqa.evaluation.scoring.report import Pairing, Report, named
from skipqa.files import (
    check_object,
    check_rows,
    kind_of,
    read_csv,
    read_json,
    read_json_with_repeats,
    read_jsonl,
    read_text,
)

QRELS_COLUMNS = ("query", "0", "passage", "number")  # of a TREC file
RUN_COLUMNS = ("query", "Q0", "passage", "rank", "number", "name")
_NUMBER = (int, float)


def score_vqa(
    benchmark: str, predictions: Path, annotations: Path, questions: Path | None = None
) -> Report:
    """OK-VQA or VQAv2. The questions file changes no score; where given, it must be whole."""
    results = check_rows(
        str(predictions), read_json(predictions), {"question_id": (int, str), "answer": str}
    )
    references = coco_vqa_data.read_annotations(annotations)
    if questions is not None:
        asked = {row["question_id"] for row in coco_vqa_data.read_questions(questions)}
        if unasked := tuple(r["question_id"] for r in references if r["question_id"] not in asked):
            raise UserError(f"{questions} lacks {named('annotated questions', unasked)}")
    return okvqa.evaluate(results, references, benchmark)


def score_aokvqa(predictions: Path, annotations: Path) -> Report:
    given, repeats = read_json_with_repeats(predictions)
    check_object(str(predictions), given, {})
    for question_id, answers in given.items():
        check_object(f"{predictions} question {question_id!r}", answers, {})
    if not any(setting in answers for answers in given.values() for setting in aokvqa.SETTINGS):
        raise UserError(f"{predictions}: no prediction has {' or '.join(aokvqa.SETTINGS)}")
    report = aokvqa.evaluate(aokvqa_data.read_scored_questions(annotations), given)
    return _with_repeats(report, repeats)


def score_infoseek(predictions: Path, references: Path, qtypes: Path) -> Report:
    rows = check_rows(
        str(predictions), read_jsonl(predictions), {"data_id": str, "prediction": str}
    )
    reference_rows = infoseek_data.read_references(references)
    types = infoseek_data.read_question_types(qtypes)
    infoseek_data.require_types(reference_rows, types)
    return infoseek.evaluate(rows, reference_rows, types)


def score_evqa(predictions: Path, references: Path, bem: evqa.BemScorer | None = None) -> Report:
    rows = read_csv(references, evqa_data.SCORING_COLUMNS)
    answers, repeats = _answers_in_order(predictions, [str(number) for number in range(len(rows))])
    return _with_repeats(evqa.evaluate(rows, answers, bem), repeats)


def score_viquae(predictions: Path, references: Path) -> Report:
    rows = viquae_data.read_references(references)
    answers, repeats = _answers_in_order(predictions, [row["id"] for row in rows])
    for row in rows:
        if not row["output"]["answer"]:
            raise UserError(f"{references} question {row['id']}: no answers")
    report = viquae.evaluate(answers, [row["output"]["answer"] for row in rows])
    return _with_repeats(report, repeats)


def score_retrieval(qrels: Path, run: Path) -> Report:
    """The default metrics of ViQuAE, in percent, from JSON or TREC files."""
    grades = _read_ranking(qrels, QRELS_COLUMNS)
    scores = _read_ranking(run, RUN_COLUMNS)
    fractions = viquae.retrieval(grades, scores)
    pairing = Pairing.of(scores, grades)
    return Report("viquae", {name: 100 * value for name, value in fractions.items()}, pairing)


def _with_repeats(report: Report, repeats: tuple[str, ...]) -> Report:
    if not repeats:
        return report
    return replace(
        report,
        pairing=replace(report.pairing, duplicate=repeats),
        notes=(*report.notes, f"{named('repeated ids', repeats)}: the last answer counts"),
    )


def _answers_in_order(path: Path, ids: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Predictions where no official file exists: one for each id, in the order of `ids`.

    A list has them in row order, as strings or as {"id": row number, "prediction_text"};
    an object maps id -> answer, and the ids that it has twice are returned as well.
    """
    value, repeats = read_json_with_repeats(path)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        rows = check_rows(str(path), value, {"id": (str, int), "prediction_text": str})
        numbers = Pairing.of((str(row["id"]) for row in rows), map(str, range(len(ids))))
        numbers.require_equal_sets()
        _require_count(path, len(rows), len(ids))
        by_row = {str(row["id"]): row["prediction_text"] for row in rows}
        answers = [by_row[str(number)] for number in range(len(ids))]
    elif isinstance(value, list):
        _require_count(path, len(value), len(ids))
        answers = value
    elif isinstance(value, dict):
        Pairing.of(value, ids).require_equal_sets()
        answers = [value[i] for i in ids]
    else:
        raise UserError(f"{path}: expected a list or an object, found {kind_of(value)}")
    for i, answer in zip(ids, answers, strict=True):
        if not isinstance(answer, str):
            raise UserError(f"{path}: the answer to {i} must be a string, found {kind_of(answer)}")
    return answers, repeats


def _require_count(path: Path, found: int, wanted: int) -> None:
    if found != wanted:
        raise UserError(f"{path} has {found} predictions for {wanted} questions")


def _read_ranking(path: Path, columns: Sequence[str]) -> dict[str, Any]:
    """{query: {passage: number}} from JSON, or from TREC lines with these columns."""
    text = read_text(path)
    if text.lstrip().startswith("{"):
        ranking = check_object(str(path), read_json(path), {})
        for query, passages in ranking.items():
            where = f"{path} query {query!r}"
            check_object(where, check_object(where, passages, {}), dict.fromkeys(passages, _NUMBER))
        return ranking
    found: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        fields = dict(zip(columns, line.split(), strict=False))
        try:
            found.setdefault(fields["query"], {})[fields["passage"]] = float(fields["number"])
        except (KeyError, ValueError):
            layout = " ".join(columns)
            raise UserError(f"{path} line {number}: expected {layout!r}, found {line!r}") from None
    return found
