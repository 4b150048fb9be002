"""Predictions files of benchmarks that have no layout of their own, and ids that occur twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from skipqa.errors import UserError
from skipqa.files import check_rows, kind_of, read_json_with_repeats
from skipqa.tasks.scores import Pairing, Report, named


def with_repeats(report: Report, repeats: tuple[str, ...]) -> Report:
    if not repeats:
        return report
    return replace(
        report,
        pairing=replace(report.pairing, duplicate=repeats),
        notes=(*report.notes, f"{named('repeated ids', repeats)}: the last answer counts"),
    )


def answers_in_order(path: Path, ids: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """One prediction for each id, in the order of `ids`.

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


def _require_count(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise UserError(f"{path} has {found} predictions for {expected} questions")
