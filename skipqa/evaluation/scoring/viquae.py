"""ViQuAE: exact match and token F1 of answers, and ranking metrics of retrieved passages.

The ranking metrics are those of ranx, from plain dictionaries: qrels {query: {passage:
grade}} and run {query: {passage: score}}.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from skipqa.errors import UserError
from skipqa.evaluation.scoring.report import Pairing, Report
from skipqa.evaluation.scoring.text import squad_normalise

METRICS = ("mrr@100", "precision@1", "precision@20", "hit_rate@20")
Qrels = Mapping[str, Mapping[str, int]]
Run = Mapping[str, Mapping[str, float]]


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1.0 when any reference is equal after normalisation; raises for no references."""
    answer = squad_normalise(prediction)
    return float(max(answer == squad_normalise(reference) for reference in references))


def f1(prediction: str, references: Sequence[str]) -> float:
    """The best F1 of token multisets; two empty strings share nothing and score 0."""
    tokens = squad_normalise(prediction).split()
    return max(_token_f1(tokens, squad_normalise(ref).split()) for ref in references)


def is_relevant(passage: str, answers: Sequence[str]) -> bool:
    """Whether any answer stands in the passage between word boundaries, both normalised.

    An answer that normalises to nothing is found wherever there is a word character.
    """
    text = squad_normalise(passage)
    return any(re.search(rf"\b{re.escape(squad_normalise(answer))}\b", text) for answer in answers)


def retrieval(
    qrels: Qrels,
    run: Run,
    metrics: Sequence[str] = METRICS,
    make_comparable: bool = False,
) -> dict[str, float]:
    """The mean of each metric over queries, as fractions.

    Passages rank by descending score and are relevant from grade 1. Raises `MismatchedIds`
    unless both have the same queries; `make_comparable` gives a query that the run lacks an
    empty result and drops one that the qrels lack.
    """
    if not make_comparable:
        Pairing.of(run, qrels).require_equal_sets()
    if not qrels:
        raise UserError("no queries to score")
    relevance = [_ranked_relevance(grades, run.get(query, {})) for query, grades in qrels.items()]
    return {name: _mean([_metric(name)(hits) for hits in relevance]) for name in metrics}


def evaluate(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Report:
    """Mean exact match and F1 in percent; predictions are in the order of the data set."""
    pairing = Pairing.of(range(len(predictions)), range(len(references)))
    pairing.require_equal_sets()
    if not references:
        raise UserError("no questions to score")
    pairs = list(zip(predictions, references, strict=True))
    scores = {
        "exact_match": 100 * _mean([exact_match(answer, wanted) for answer, wanted in pairs]),
        "f1": 100 * _mean([f1(answer, wanted) for answer, wanted in pairs]),
    }
    return Report("viquae", scores, pairing)


def _token_f1(prediction: list[str], reference: list[str]) -> float:
    shared = (Counter(prediction) & Counter(reference)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(prediction), shared / len(reference)
    return 2 * precision * recall / (precision + recall)


def _ranked_relevance(grades: Mapping[str, int], results: Mapping[str, float]) -> list[bool]:
    ranked = sorted(results, key=lambda passage: results[passage], reverse=True)
    return [grades.get(passage, 0) >= 1 for passage in ranked]


def _metric(name: str) -> Callable[[list[bool]], float]:
    """'precision@20' and the like; without a cut-off, the whole ranking."""
    kind, _, cutoff = name.partition("@")
    k = int(cutoff) if cutoff else None
    if kind == "mrr":
        return lambda hits: next((1 / rank for rank, hit in enumerate(hits[:k], 1) if hit), 0.0)
    if kind == "hit_rate":
        return lambda hits: float(any(hits[:k]))
    if kind == "precision":  # short rankings divide by k all the same
        return lambda hits: sum(hits[:k]) / (k or len(hits) or 1)
    raise UserError(f"unknown retrieval metric {name!r}: use mrr, precision or hit_rate, with @k")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
