"""PathVQA: questions on pathology images, half of them answered by yes or no (He et al., 2020).

Enters: {train,val,test}.jsonl with a row {image, question, answer} per line, and the photos in
images/SPLIT/. The authors publish the rows as pickles, which run code when they are read: they are
refused, with the line that converts them. `pathvqa_parquet.py` makes the same layout of the Parquet
files on the Hugging Face Hub. Rows have no id: the row number serves.

Yes/no questions are scored by accuracy, the others by exact match, macro-averaged F1 and BLEU-1 to
BLEU-3, each the mean over questions, as the authors report them. Exact match ignores case and
spacing. F1 compares bags of words; BLEU is that of Papineni et al. (2002) for one sentence, the
geometric mean of clipped n-gram precisions times the brevity penalty, and 0 where a prediction is
shorter than n words. The script in the authors' repository differs from these definitions: it
measures brevity in characters, leaves out precisions of zero, counts every repetition of a right
word, drops digits, and calls a precision of words exact match.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skipqa.errors import UserError
from skipqa.files import Fields, check_rows, read_jsonl, write_json
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.predictions import answers_in_order, with_repeats
from skipqa.tasks.scores import Pairing, Report
from skipqa.tasks.task import (
    FileScorer,
    Predictions,
    References,
    RowsPerSplit,
    TaskDefaults,
    official_file,
    require_split,
)
from skipqa.tasks.text import token_f1

SCORING_FIELDS: Fields = {"answer": str}
FIELDS: Fields = {"image": str, "question": str, **SCORING_FIELDS}
YES_NO, OPEN = "yes/no", "open"
LONGEST_NGRAM = 3

_NOT_WORDS = re.compile(r"[^a-z0-9 ]")


def kind_of_question(answer: str) -> str:
    return YES_NO if _plain(answer) in ("yes", "no") else OPEN


def exact_match(prediction: str, answer: str) -> float:
    return float(_plain(prediction) == _plain(answer))


def words(text: str) -> list[str]:
    """Lower-cased, all but letters, digits and spaces deleted."""
    return _NOT_WORDS.sub("", " ".join(text.lower().split())).split()


def f1(prediction: str, answer: str) -> float:
    """Of the two bags of words; 0 where either has none."""
    return token_f1(words(prediction), words(answer))


def bleu(prediction: str, answer: str, longest: int) -> float:
    """BLEU of one sentence against one reference, over n-grams of 1 to `longest` words."""
    given, expected = words(prediction), words(answer)
    precisions = [_precision(given, expected, n) for n in range(1, longest + 1)]
    if not all(precisions):
        return 0.0
    brevity = min(0.0, 1 - len(expected) / len(given))
    return math.exp(brevity + sum(map(math.log, precisions)) / longest)


def evaluate(predictions: Sequence[str], answers: Sequence[str]) -> Report:
    """All scores in percent; those of a kind of question that does not occur are left out."""
    pairing = Pairing.of(range(len(predictions)), range(len(answers)))
    pairing.require_equal_sets()
    if not answers:
        raise UserError("no questions to score")
    pairs: dict[str, list[tuple[str, str]]] = {YES_NO: [], OPEN: []}
    for prediction, answer in zip(predictions, answers, strict=True):
        pairs[kind_of_question(answer)].append((prediction, answer))
    every = pairs[YES_NO] + pairs[OPEN]
    scores: dict[str, Any] = {"exact_match": _percent([exact_match(*pair) for pair in every])}
    if closed := pairs[YES_NO]:
        scores["yes_no_accuracy"] = _percent([exact_match(*pair) for pair in closed])
    if free := pairs[OPEN]:
        scores["open"] = {
            "exact_match": _percent([exact_match(*pair) for pair in free]),
            "f1": _percent([f1(*pair) for pair in free]),
            **{
                f"bleu-{n}": _percent([bleu(*pair, n) for pair in free])
                for n in range(1, LONGEST_NGRAM + 1)
            },
        }
    return Report("pathvqa", scores, pairing)


class PathVqa(RowsPerSplit, TaskDefaults):
    name = "pathvqa"
    title = "PathVQA"
    splits = ("train", "val", "test")
    default_split = "val"

    def load(self, folder: Path, split: str, images: Path | None = None) -> list[Example]:
        require_split(self.name, split, self.splits)
        path = self.files(folder, split)[0]
        if not path.is_file():
            _refuse_other_forms(folder, split)
        rows = _read_rows(official_file(self.name, folder, path.name), FIELDS)
        return [
            Example(
                id=number,
                image=_image_name(row["image"], split),
                question=row["question"],
                answers={row["answer"]: 1.0},
                category=kind_of_question(row["answer"]),
                split=split,
                source=self.name,
                record=row,
            )
            for number, row in enumerate(rows)
        ]

    def score(self, example: Example, prediction: str) -> float:
        """Exact match; F1 and BLEU are in the report."""
        self.check(example)
        return exact_match(prediction, example.record["answer"])

    def report(self, examples: Sequence[Example], predictions: Mapping[QuestionId, str]) -> Report:
        answers = [example.record["answer"] for example in examples]
        return evaluate([predictions[example.id] for example in examples], answers)

    def file_scorers(self) -> dict[str, FileScorer]:
        return {self.name: score_files}

    def write_predictions(self, predictions: Mapping[QuestionId, str], path: Path) -> None:
        """A list in row order: a part of a split has row numbers of its own."""
        write_json(path, list(predictions.values()))


def score_files(predictions: Predictions, references: References) -> Report:
    rows = _read_rows(references, SCORING_FIELDS)
    answers, repeats = answers_in_order(predictions, [str(number) for number in range(len(rows))])
    return with_repeats(evaluate(answers, [row["answer"] for row in rows]), repeats)


def _refuse_other_forms(folder: Path, split: str) -> None:
    """What is there in place of the rows, and how to convert it."""
    if pickled := next(iter(sorted(folder.rglob(f"{split}_qa.pkl"))), None):
        raise UserError(
            f"{pickled} is a pickle, which can run code when it is read, so skipqa does not read "
            'it: if you trust it, convert it with `python -c "import json, pickle, sys; '
            '[print(json.dumps(row)) for row in pickle.load(sys.stdin.buffer)]" '
            f"< {pickled} > {folder / split}.jsonl`"
        )
    if next(folder.rglob("*.parquet"), None):
        raise UserError(
            f"{folder} has Parquet files: convert them with "
            f"`skipqa data pathvqa --parquet {folder} --out FOLDER` and set that folder"
        )


def _read_rows(path: Path, fields: Fields) -> list[dict[str, Any]]:
    return check_rows(str(path), read_jsonl(path), fields)


def _image_name(image: str, split: str) -> str:
    """The authors' rows leave the suffix out."""
    return f"{split}/{image if Path(image).suffix else f'{image}.jpg'}"


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _precision(given: Sequence[str], expected: Sequence[str], n: int) -> float:
    """Of n-grams, each counted at most as often as the reference has it."""
    said, reference = _ngrams(given, n), _ngrams(expected, n)
    return (said & reference).total() / said.total() if said else 0.0


def _ngrams(of: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(of[i : i + n]) for i in range(len(of) - n + 1))


def _percent(scores: Sequence[float]) -> float:
    return 100 * sum(scores) / len(scores)


PATHVQA = PathVqa()
