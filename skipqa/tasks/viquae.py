"""ViQuAE: trivia questions about named entities on Wikimedia photos, in KILT-like JSON Lines.

Scored by exact match and token F1 of answers, and ranking metrics of retrieved passages. The latter
are those of ranx, from plain dictionaries: qrels {query: {passage: grade}} and run
{query: {passage: score}}.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from skipqa.errors import UserError
from skipqa.files import (
    check_object,
    check_rows,
    read_json,
    read_jsonl,
    read_text,
    write_json,
)
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
from skipqa.tasks.text import squad_normalise, token_f1

SCORING_FIELDS = {"id": str, "output": dict}
FIELDS = {**SCORING_FIELDS, "input": str, "image": str}
QRELS_COLUMNS = ("query", "0", "passage", "number")  # of a TREC file
RUN_COLUMNS = ("query", "Q0", "passage", "rank", "number", "name")
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
    return max(token_f1(tokens, squad_normalise(ref).split()) for ref in references)


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
        "exact_match": 100 * _mean([exact_match(answer, accepted) for answer, accepted in pairs]),
        "f1": 100 * _mean([f1(answer, accepted) for answer, accepted in pairs]),
    }
    return Report("viquae", scores, pairing)


class Viquae(RowsPerSplit, TaskDefaults):
    name = "viquae"
    title = "ViQuAE"
    splits = ("train", "validation", "test")
    default_split = "validation"

    def load(self, folder: Path, split: str, images: Path | None = None) -> list[Example]:
        require_split(self.name, split, self.splits)
        path = official_file(self.name, folder, self.files(folder, split)[0].name)
        return [
            Example(
                id=row["id"],
                image=row["image"],
                question=row["input"],
                answers=dict.fromkeys(row["output"]["answer"], 1.0),
                split=split,
                source=self.name,
                record=row,
            )
            for row in _read_rows(path, FIELDS)
        ]

    def score(self, example: Example, prediction: str) -> float:
        """Exact match; F1 is in the report."""
        self.check(example)
        return exact_match(prediction, example.record["output"]["answer"])

    def report(self, examples: Sequence[Example], predictions: Mapping[QuestionId, str]) -> Report:
        references = [example.record["output"]["answer"] for example in examples]
        return evaluate([predictions[example.id] for example in examples], references)

    def file_scorers(self) -> dict[str, FileScorer]:
        return {"viquae": score_files, "viquae-retrieval": score_retrieval_files}

    def write_predictions(self, predictions: Mapping[QuestionId, str], path: Path) -> None:
        write_json(path, dict(predictions))


def score_files(predictions: Predictions, references: References) -> Report:
    rows = _read_rows(references, SCORING_FIELDS)
    answers, repeats = answers_in_order(predictions, [row["id"] for row in rows])
    for row in rows:
        if not row["output"]["answer"]:
            raise UserError(f"{references} question {row['id']}: no answers")
    report = evaluate(answers, [row["output"]["answer"] for row in rows])
    return with_repeats(report, repeats)


def score_retrieval_files(
    qrels: Annotated[Path, "Relevant passages, JSON or TREC"],
    run: Annotated[Path, "Retrieved passages, JSON or TREC"],
) -> Report:
    """The default metrics, in percent, from JSON or TREC files."""
    grades, scores = _read_ranking(qrels, QRELS_COLUMNS), _read_ranking(run, RUN_COLUMNS)
    fractions = retrieval(grades, scores)
    pairing = Pairing.of(scores, grades)
    return Report("viquae", {name: 100 * value for name, value in fractions.items()}, pairing)


def _read_rows(path: Path, fields: Mapping[str, type]) -> list[dict[str, Any]]:
    rows = check_rows(str(path), read_jsonl(path), fields)
    for row in rows:
        where = f"{path} question {row['id']} output"
        check_object(where, row["output"], {"answer": list})
        if not all(isinstance(answer, str) for answer in row["output"]["answer"]):
            raise UserError(f"{where}: every answer must be a string")
    return rows


def _read_ranking(path: Path, columns: Sequence[str]) -> dict[str, Any]:
    """{query: {passage: number}} from JSON, or from TREC lines with these columns."""
    text = read_text(path)
    if text.lstrip().startswith("{"):
        ranking = check_object(str(path), read_json(path), {})
        for query, passages in ranking.items():
            where = f"{path} query {query!r}"
            check_object(where, passages, {})
            check_object(where, passages, dict.fromkeys(passages, (int, float)))
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


VIQUAE = Viquae()
