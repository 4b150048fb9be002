"""Encyclopedic-VQA: exact match after preprocessing, then BEM where a scorer is given.

BEM is a BERT that judges whether two answers mean the same; `bem.py` loads the official
one. Without a scorer the result is the exact-match lower bound, not the official accuracy.
"""

from __future__ import annotations

import re
import string
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skipqa.errors import UserError
from skipqa.evaluation.scoring.report import Pairing, Report
from skipqa.evaluation.scoring.text import CONTRACTIONS, NUMBER_WORDS

QUESTION_TYPES = ("templated", "automatic", "multi_answer", "2_hop")
MIN_IOU = 0.5
MIN_BEM = 0.5

# (candidate, reference, question) -> two logits, for "different" and "equivalent".
BemScorer = Callable[[str, str, str], ArrayLike]

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
        references, kind = row["answer"].split("|"), row["question_type"]
        try:
            value = (
                exact_match(candidate, references, kind)
                if bem is None
                else score(row["question"], candidate, references, kind, bem)
            )
        except ValueError as error:
            raise UserError(f"row {number} cannot be scored: {error}") from error
        every.append(value)
        groups["perQuestionType"][kind].append(value)
        groups["perSplit"][row.get("encyclopedic_vqa_split", "")].append(value)
    means: dict[str, Any] = {
        name: {kind: _percent(values) for kind, values in by_kind.items()}
        for name, by_kind in groups.items()
    }
    notes = () if bem else ("exact match only: the official accuracy adds BEM, see --bem",)
    name = "exact_match" if bem is None else "accuracy"
    return Report("evqa", {name: _percent(every), **means}, pairing, notes)


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
        wanted = {item for item in map(preprocess, reference.split("&&")) if item}
        if not wanted:
            raise ValueError("Reference list is empty after preprocessing.")
        given = set(split_items(candidate))
        return len(wanted & given) / len(wanted | given) >= MIN_IOU
    wanted_answer = preprocess(reference)
    if not wanted_answer:
        raise ValueError("Reference answer is empty after preprocessing.")
    return wanted_answer == preprocess(candidate)


def _percent(scores: Sequence[float]) -> float:
    return 100 * sum(scores) / len(scores)
