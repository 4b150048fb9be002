"""What a run keeps in its folder: `run.json`, and a record per question in `predictions.jsonl`.

Enters: an example, the answer to it, the task that scores it. Leaves: plain values for JSON. A
killed run reads its records back and goes on. It asks nothing and averages nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from skipqa.answer import Answer
from skipqa.costs import memory
from skipqa.errors import UserError
from skipqa.files import claim, parse_json
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.task import Scorer
from skipqa.types import Retrieved

Record = dict[str, Any]

# Of a record, if nothing else was answered meanwhile: next to others they would be those of all
MEASURED_ALONE = ("latency_ms", "stage_ms", "peak_memory_bytes")
RECALL_AT = 4


def make_record(example: Example, answer: Answer, scorer: Scorer) -> Record:
    known = {
        "category": example.category,
        "subset": example.subsets or None,
        "popularity": example.popularity,
    }
    prediction = scorer.prediction(example, answer.text)
    pathway = _pathway(answer)
    found = pathway["retrieved"], pathway["evidence"]
    return {
        "question_id": example.id,
        **{name: value for name, value in known.items() if value is not None},
        "answer": answer.text,
        **({} if prediction == answer.text else {"prediction": prediction}),
        "score": scorer.score(example, prediction),
        "route": answer.route,
        **pathway,
        **(recall(example.gold, *found) if example.gold and answer.route == "full" else {}),
        "flops": answer.trace.flops,
        "latency_ms": round(answer.trace.latency_ms, 3),
        "stage_ms": {stage.name: round(stage.ms, 3) for stage in answer.trace.stages},
        "peak_memory_bytes": memory.peak_bytes(),
    }


def _pathway(answer: Answer) -> Record:
    """What the stages kept on the way to an answer."""
    state, trace = answer.state, answer.trace
    found = state.retrieved if "retrieved" in state else Retrieved((), 0, 0)
    return {
        "tokens": len(state.kept.positions) if "kept" in state else 0,  # V'
        "passages": state.budget.passages if "budget" in state else 0,  # K'
        "edges": trace["fuse"].kept if "fuse" in trace else 0,
        "hits": found.num_hits,  # over all regions
        "unique": found.num_unique,  # of these, different passages
        # before verification, best first
        "retrieved": [candidate.passage.id for candidate in found.passages],
        "evidence": [passage.id for passage in answer.evidence],
    }


def prediction_of(record: Record) -> str:
    """What was scored: the answer itself, unless the task takes it for another text."""
    return str(record.get("prediction", record["answer"]))


def recall(
    gold: Sequence[frozenset[str]], retrieved: Sequence[str], evidence: Sequence[str]
) -> dict[str, Any]:
    """The fraction of steps with a passage among the first retrieved, and among those kept.

    Most questions have one step: a hit or none. A question that was drafted retrieved nothing and
    says nothing of retrieval.
    """

    def fraction(passages: Sequence[str]) -> float:
        return float(np.mean([not step.isdisjoint(passages) for step in gold]))

    return {
        "gold": sorted(frozenset().union(*gold)),
        f"recall@{RECALL_AT}": fraction(retrieved[:RECALL_AT]),
        "recall_kept": fraction(evidence),
    }


def claim_folder(folder: Path, run: Mapping[str, Any]) -> None:
    """Write down in `folder` what is run there, or check that it is the same."""
    path = folder / "run.json"
    if not path.exists() and (folder / "predictions.jsonl").exists():
        raise UserError(f"{folder} holds answers of an unknown run: choose another folder")
    claim(path, run)


def read_back(path: Path) -> dict[QuestionId, Record]:
    """The records written so far; what a kill left of a last line is cut off."""
    if not path.exists():
        return {}
    written = path.read_bytes()
    whole = written[: written.rfind(b"\n") + 1]
    if len(whole) < len(written):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    records = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            record = parse_json(line.decode())
            records[record["question_id"]] = record
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{path} line {number} is no record: delete that line") from None
    return records
