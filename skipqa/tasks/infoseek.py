"""InfoSeek: questions about Wikipedia entities on OVEN photos, in JSON Lines.

Strings and times are scored by exact match with any alias, numbers by ranges.

The official code promises leniency on dates that it does not have; neither has this.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from skipqa.errors import UserError
from skipqa.files import Fields, check_rows, read_jsonl, write_jsonl
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.photos import Photos
from skipqa.tasks.scores import Pairing, Report, named
from skipqa.tasks.task import (
    FileScorer,
    Predictions,
    References,
    TaskDefaults,
    official_file,
    require_split,
)
from skipqa.tasks.text import squad_normalise

Number = float | Sequence[float]  # one value, or a range [low, high]

SPLITS = ("unseen_question", "unseen_entity")
TOLERANCE = 0.1  # around a reference given as one number, which no official file does
MIN_IOU = 0.5
EPSILON = 1e-12

QUESTION_FIELDS = {"data_id": str, "image_id": str, "question": str}
SCORING_FIELDS: Fields = {"data_id": str, "data_split": str, "answer_eval": (list, dict)}
QTYPE_FIELDS = {"data_id": str, "question_type": str}
IMAGE_SUFFIXES = (".jpg", ".JPEG", ".jpeg", ".png")  # OVEN keeps each source's own
# What the official code raises for a prediction or a reference that it cannot read
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)

_SHORT = {"time": "time", "numerical": "num"}  # the official names; any other type is a string
_NUMBER = re.compile(r"[-+]?[.]?\d+(?:,\d\d\d)*[.]?\d*(?:[eE][-+]?\d+)?")


def score(prediction: str, question_type: str, answer_eval: Any) -> float:
    """1.0 or 0.0 for one prediction. `answer_eval` is that field of a reference row.

    Raises what the official code raises: `ValueError` for a number such as "-.1.2", for
    no aliases at all, and for a range with fewer than two ends.
    """
    if question_type.lower() != "numerical":  # "time" and anything else
        answer = squad_normalise(prediction)
        return float(max(answer == squad_normalise(alias) for alias in answer_eval))
    number = parse_number(prediction)
    if isinstance(answer_eval, int | float):
        return numerical_score(number, answer_eval)
    first = answer_eval[0] if isinstance(answer_eval, list) else answer_eval
    return numerical_score(number, [float(str(end)) for end in first["range"]][:2])


def parse_number(text: str) -> Number:
    """The first number of a text, or its first two as a range when they do not decrease."""
    numbers = [_to_float(token) for token in _NUMBER.findall(_space_hyphens(text))][:2]
    if not numbers:
        return [0, 0]
    if len(numbers) == 2 and numbers[0] <= numbers[1]:
        return numbers
    return numbers[0]


def numerical_score(prediction: Number, reference: Number) -> float:
    """A single number must lie in the reference range; a range may also overlap it by half."""
    if isinstance(reference, int | float):
        reference = [reference * (1 - TOLERANCE), reference * (1 + TOLERANCE)]
    if isinstance(prediction, int | float):
        low, high = reference
        return float(low <= prediction <= high)
    if all(reference[0] <= end <= reference[1] for end in prediction):
        return 1.0
    return float(_overlap(prediction, reference) >= MIN_IOU - EPSILON)


def harmonic_mean(*values: float) -> float:
    """Zero counts as 1e-12."""
    return len(values) / sum(1.0 / (value or EPSILON) for value in values)


def evaluate(
    predictions: Sequence[Mapping[str, Any]],
    references: Sequence[Mapping[str, Any]],
    question_types: Mapping[str, str],
) -> Report:
    """Scores of both splits and their harmonic mean, in percent to two decimals.

    The mean runs over predictions: what is missing costs nothing, what is repeated counts
    again, unknown ids are skipped.
    """
    reference_of = {reference["data_id"]: reference for reference in references}
    scores: dict[str, dict[str, list[float]]] = {split: defaultdict(list) for split in SPLITS}
    for row in predictions:
        if row["data_id"] not in reference_of:
            continue
        reference = reference_of[row["data_id"]]
        kind = question_types[row["data_id"]]
        split = SPLITS[0] if reference["data_split"].endswith(SPLITS[0]) else SPLITS[1]
        try:
            value = score(row["prediction"], kind, reference["answer_eval"])
        except UNREADABLE as error:
            raise UserError(f"{row['data_id']} cannot be scored: {error}") from error
        scores[split][_SHORT.get(kind.lower(), "string")].append(value)
    splits = {f"{split}_score": _split_score(by_kind) for split, by_kind in scores.items()}
    final = harmonic_mean(*(split["score"] for split in splits.values()))
    pairing = Pairing.of((row["data_id"] for row in predictions), reference_of)
    notes = (
        (pairing.missing, "questions without a prediction", "not counted"),
        (pairing.duplicate, "ids predicted more than once", "each prediction counts"),
        (pairing.unknown, "unknown ids", "skipped"),
    )
    return Report(
        "infoseek",
        {"final_score": round(final, 2), **splits},
        pairing,
        tuple(f"{named(what, ids)}: {rule}" for ids, what, rule in notes if ids),
    )


class InfoSeek(TaskDefaults):
    name = "infoseek"
    title = "InfoSeek"
    splits = ("train", "val", "test", "human")
    default_split = "val"
    predictions_name = "predictions.jsonl"

    def files(self, folder: Path, split: str) -> tuple[Path, Path]:
        """Questions, and question types, which are published for val only."""
        return folder / f"infoseek_{split}.jsonl", folder / f"infoseek_{split}_qtype.jsonl"

    def load(self, folder: Path, split: str, images: Path | None = None) -> list[Example]:
        """The category is the question type, where that is known."""
        require_split(self.name, split, self.splits)
        questions, qtypes = self.files(folder, split)
        path = official_file(self.name, folder, questions.name)
        type_of = read_question_types(qtypes) if qtypes.is_file() else {}
        images = images or self.images(folder, split)
        photos = Photos(images) if images.exists() else None
        return [
            Example(
                id=row["data_id"],
                image=_image_name(photos, row["image_id"]),
                question=row["question"],
                answers=dict.fromkeys(row.get("answer", ()), 1.0),
                category=type_of.get(row["data_id"]),
                split=split,
                source=self.name,
                record=row,
            )
            for row in check_rows(str(path), read_jsonl(path), QUESTION_FIELDS)
        ]

    def check(self, example: Example) -> None:
        super().check(example)
        if example.category is None:
            raise UserError(
                f"{example.place}: its type is not known, and the score depends on it; "
                f"infoseek_{example.split}_qtype.jsonl has the types"
            )

    def score(self, example: Example, prediction: str) -> float:
        self.check(example)
        try:
            return score(prediction, example.category or "", example.record["answer_eval"])
        except UNREADABLE as error:
            raise UserError(f"{prediction!r} cannot be scored: {error}") from error

    def report(self, examples: Sequence[Example], predictions: Mapping[QuestionId, str]) -> Report:
        rows = [{"data_id": e.id, "prediction": predictions[e.id]} for e in examples]
        types = {str(e.id): e.category or "" for e in examples}
        return evaluate(rows, [e.record for e in examples], types)

    def file_scorers(self) -> dict[str, FileScorer]:
        return {"infoseek": score_files}

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        questions, qtypes = self.files(folder, split)
        write_jsonl(questions, (e.record for e in examples))
        if typed := [e for e in examples if e.category is not None]:
            write_jsonl(qtypes, ({"data_id": e.id, "question_type": e.category} for e in typed))

    def write_predictions(self, predictions: Mapping[QuestionId, str], path: Path) -> None:
        write_jsonl(path, ({"data_id": id, "prediction": t} for id, t in predictions.items()))


def score_files(
    predictions: Predictions, references: References, qtypes: Annotated[Path, "Question types"]
) -> Report:
    fields = {"data_id": str, "prediction": str}
    rows = check_rows(str(predictions), read_jsonl(predictions), fields)
    reference_rows = check_rows(str(references), read_jsonl(references), SCORING_FIELDS)
    types = read_question_types(qtypes)
    untyped = [row["data_id"] for row in reference_rows if row["data_id"] not in types]
    if untyped:
        raise UserError(
            f"{len(untyped)} references have no question type (first: {untyped[0]!r}): "
            "the two files belong to different splits"
        )
    return evaluate(rows, reference_rows, types)


def read_question_types(path: Path) -> dict[str, str]:
    rows = check_rows(str(path), read_jsonl(path), QTYPE_FIELDS)
    return {row["data_id"]: row["question_type"] for row in rows}


def _image_name(photos: Photos | None, image_id: str) -> str:
    names = [f"{image_id}{suffix}" for suffix in IMAGE_SUFFIXES]
    return next((name for name in names if photos is not None and name in photos), names[0])


def _split_score(by_kind: Mapping[str, list[float]]) -> dict[str, float]:
    kinds = {f"score_{kind}": by_kind.get(kind, []) for kind in ("time", "num", "string")}
    every = [value for values in kinds.values() for value in values]
    return {name: _percent(values) for name, values in {"score": every, **kinds}.items()}


def _percent(scores: Sequence[float]) -> float:
    return round(sum(scores) / len(scores) * 100, 2) if scores else 0.0


def _space_hyphens(text: str) -> str:
    """A hyphen right after a digit separates two numbers instead of negating the second."""
    return "".join(
        " - " if mark == "-" and before.isdigit() else mark
        for before, mark in zip(" " + text, text, strict=False)
    )


def _to_float(token: str) -> float:
    """Dots are stripped from both ends, so that ".5" reads 5; two inner dots cut at the first."""
    token = token.replace(",", "").strip(".")
    return float(token.split(".")[0] if token.count(".") > 1 else token)


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of two ranges, each lengthened by epsilon."""
    shared = max(0.0, min(max(one), max(other)) - max(min(one), min(other)))
    total = (max(one) - min(one) + EPSILON) + (max(other) - min(other) + EPSILON)
    return shared / (total - shared)


INFOSEEK = InfoSeek()
