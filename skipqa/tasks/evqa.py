"""Encyclopedic-VQA: questions on iNaturalist and Landmarks photos, in CSV.

Scored by exact match after preprocessing, then by BEM where a scorer is given. BEM is a BERT that
judges whether two answers mean the same; `bem.py` loads the official one. Without a scorer the
result is the exact-match lower bound, not the official accuracy. A row has up to five photos; an
example takes the first, as published evaluations do. Rows have no id: the row number serves.
"""

from __future__ import annotations

import csv
import re
import string
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from skipqa.errors import UserError
from skipqa.files import check_object, check_rows, read_csv, read_json, write_json
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.predictions import answers_in_order, with_repeats
from skipqa.tasks.scores import Pairing, Report
from skipqa.tasks.task import (
    FileScorer,
    Predictions,
    References,
    TaskDefaults,
    official_file,
    require_split,
)
from skipqa.tasks.text import CONTRACTIONS, NUMBER_WORDS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

QUESTION_TYPES = ("templated", "automatic", "multi_answer", "2_hop")
MIN_IOU = 0.5
MIN_BEM = 0.5

# (candidate, reference, question) -> two logits, for "different" and "equivalent".
BemScorer = Callable[[str, str, str], "ArrayLike"]
BemFolder = Annotated[Path | None, "Folder of the BEM model; without it: exact match"]

SCORING_COLUMNS = ("question", "answer", "question_type")
COLUMNS = (*SCORING_COLUMNS, "dataset_image_ids", "dataset_name")

_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation + "‘’´")
_FILLERS = re.compile(r"\b(the answer is|a|an|the)\b")
_SPAN_PREFIX = "<extra_id_0> "  # what T5 writes before an answer
_VERDICTS = {"true": "yes", "entailment": "yes", "false": "no", "contradiction": "no"}
_WORDS = {**NUMBER_WORDS, **_VERDICTS}


def preprocess(text: str) -> str:
    text = text.lower().replace("\n", " ").replace("\t", " ").strip()
    if text.startswith(_SPAN_PREFIX):
        text = text.replace(_SPAN_PREFIX, "")
    text = _FILLERS.sub(" ", text.translate(_DELETE_PUNCTUATION))
    words = (_WORDS.get(word, word) for word in text.split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words)


def exact_match(candidate: str, references: Sequence[str], question_type: str) -> float:
    """1.0 when the candidate equals any reference; every reference is looked at."""
    return _best(references, question_type, partial(_matches, candidate), lambda _: 0.0)


def score(
    question: str,
    candidate: str,
    references: Sequence[str],
    question_type: str,
    bem: BemScorer,
) -> float:
    """The official score: exact match, else BEM, the best over all references."""
    import numpy as np  # here alone: the command line lists the tasks and starts without it

    def equivalent(reference: str) -> float:
        if question_type == "multi_answer":
            reference = reference.replace("&&", ",")
        logits = np.squeeze(np.asarray(bem(candidate, reference, question)))
        odds = np.exp(logits - logits.max())
        return float(odds[1] / odds.sum() >= MIN_BEM)

    return _best(references, question_type, partial(_matches, candidate), equivalent)


def split_items(candidate: str) -> list[str]:
    """The items of a multi_answer candidate, which has no separator of its own."""
    pieces = candidate.replace(" and ", ",").replace(" & ", ",").split(",")
    return [item for item in map(preprocess, pieces) if item]


def evaluate(
    rows: Sequence[Mapping[str, str]], predictions: Sequence[str], bem: BemScorer | None = None
) -> Report:
    """Mean accuracy in percent over CSV rows and the predictions in their order."""
    pairing = Pairing.of(range(len(predictions)), range(len(rows)))
    pairing.require_equal_sets()
    if not rows:
        raise UserError("no questions to score")
    groups: dict[str, dict[str, list[float]]] = {
        "perQuestionType": defaultdict(list),
        "perSplit": defaultdict(list),
    }
    every: list[float] = []
    for number, (row, candidate) in enumerate(zip(rows, predictions, strict=True)):
        try:
            value = _score_row(row, candidate, bem)
        except ValueError as error:
            raise UserError(f"row {number} cannot be scored: {error}") from error
        every.append(value)
        groups["perQuestionType"][row["question_type"]].append(value)
        groups["perSplit"][row.get("encyclopedic_vqa_split", "")].append(value)
    means: dict[str, Any] = {
        name: {kind: _percent(values) for kind, values in by_kind.items()}
        for name, by_kind in groups.items()
    }
    notes = () if bem else ("exact match only: the official accuracy adds BEM, see --bem",)
    name = "exact_match" if bem is None else "accuracy"
    return Report("evqa", {name: _percent(every), **means}, pairing, notes)


@dataclass(frozen=True)
class Evqa(TaskDefaults):
    bem: BemScorer | None = None
    title: str = "Encyclopedic-VQA"
    splits: tuple[str, ...] = ("train", "val", "test")
    default_split: str = "val"

    @property
    def name(self) -> str:
        return "evqa" if self.bem is None else "evqa-bem"

    def with_options(self, bem: BemFolder = None) -> Self:
        from skipqa.tasks.bem import Bem

        return self if bem is None else replace(self, bem=Bem(bem))

    def files(self, folder: Path, split: str) -> tuple[Path]:
        return (folder / f"{split}.csv",)

    def load(self, folder: Path, split: str, images: Path | None = None) -> list[Example]:
        require_split("evqa", split, self.splits)
        path = official_file("evqa", folder, self.files(folder, split)[0].name)
        inaturalist = _inaturalist_names((images or self.images(folder, split)) / "inaturalist")
        return [
            Example(
                id=number,
                image=_image_name(row["dataset_name"], image_id, inaturalist),
                question=row["question"],
                answers=dict.fromkeys(row["answer"].split("|"), 1.0),
                category=row["question_type"],
                split=split,
                source="evqa",
                record=row,
            )
            for number, row in enumerate(read_csv(path, COLUMNS))
            for image_id in (row["dataset_image_ids"].split("|")[0],)
        ]

    def check(self, example: Example) -> None:
        super().check(example)
        try:
            _score_row(example.record, "", None)
        except ValueError as error:
            raise UserError(f"{example.place} cannot be scored: {error}") from error

    def score(self, example: Example, prediction: str) -> float:
        self.check(example)
        return _score_row(example.record, prediction, self.bem)

    def report(self, examples: Sequence[Example], predictions: Mapping[QuestionId, str]) -> Report:
        rows = [example.record for example in examples]
        return evaluate(rows, [predictions[example.id] for example in examples], self.bem)

    def file_scorers(self) -> dict[str, FileScorer]:
        return {"evqa": score_files}

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        if not examples:
            raise UserError("no examples to write")
        folder.mkdir(parents=True, exist_ok=True)
        with self.files(folder, split)[0].open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(examples[0].record), lineterminator="\n")
            writer.writeheader()
            writer.writerows(example.record for example in examples)

    def write_predictions(self, predictions: Mapping[QuestionId, str], path: Path) -> None:
        """A list in row order: a part of a split has row numbers of its own."""
        write_json(path, list(predictions.values()))


def score_files(predictions: Predictions, references: References, bem: BemFolder = None) -> Report:
    from skipqa.tasks.bem import Bem

    rows = read_csv(references, SCORING_COLUMNS)
    answers, repeats = answers_in_order(predictions, [str(number) for number in range(len(rows))])
    return with_repeats(evaluate(rows, answers, Bem(bem) if bem else None), repeats)


def _score_row(row: Mapping[str, str], candidate: str, bem: BemScorer | None) -> float:
    references, kind = row["answer"].split("|"), row["question_type"]
    if bem is None:
        return exact_match(candidate, references, kind)
    return score(row["question"], candidate, references, kind, bem)


def _image_name(source: str, image_id: str, inaturalist: Mapping[str, str]) -> str:
    if source == "inaturalist":
        return f"{source}/{inaturalist.get(image_id, f'{image_id}.jpg')}"
    return f"{source}/{'/'.join(image_id[:3])}/{image_id}.jpg"  # Landmarks: a/b/c/abc….jpg


def _inaturalist_names(folder: Path) -> dict[str, str]:
    """id -> path, from the annotation files that come with the iNaturalist 2021 photos."""
    names: dict[str, str] = {}
    for split in ("train", "val"):
        path = folder / f"{split}.json"
        if path.is_file():
            contents = check_object(str(path), read_json(path), {"images": list})
            rows = check_rows(str(path), contents["images"], {"id": int, "file_name": str})
            names |= {str(row["id"]): row["file_name"] for row in rows}
    return names


def _best(
    references: Sequence[str],
    question_type: str,
    matches: Callable[[str, str], bool],
    otherwise: Callable[[str], float],
) -> float:
    """The maximum over references, none skipped: a bad one raises even after a match."""
    if not references:
        raise ValueError("Reference list cannot be empty.")
    if question_type not in QUESTION_TYPES:
        raise ValueError(f"Unknown question type. Valid options are {list(QUESTION_TYPES)}")
    return max(
        1.0 if matches(reference, question_type) else otherwise(reference)
        for reference in references
    )


def _matches(candidate: str, reference: str, question_type: str) -> bool:
    if not reference:
        raise ValueError("Reference answer cannot be empty.")
    if question_type == "multi_answer":
        items = {item for item in map(preprocess, reference.split("&&")) if item}
        if not items:
            raise ValueError("Reference list is empty after preprocessing.")
        given = set(split_items(candidate))
        return len(items & given) / len(items | given) >= MIN_IOU
    answer = preprocess(reference)
    if not answer:
        raise ValueError("Reference answer is empty after preprocessing.")
    return answer == preprocess(candidate)


def _percent(scores: Sequence[float]) -> float:
    return 100 * sum(scores) / len(scores)


EVQA = Evqa()
