"""Run folders made up in a moment, in the harness's own format."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from skipqa.evaluation.records import MEASURED_ALONE
from skipqa.evaluation.summary import summarise

MakeRun = Callable[..., Path]

HEADER = {
    "machine": {"cpu": "abacus", "cores": 2},
    "python": "3.11.0",
    "versions": {"torch": "2.0"},
    "commit": "abc1234",
    "command": "skipqa eval vqa",
    "date": "2026-11-15",
}
STAGES = {"encode": 0.4, "draft": 0.001, "prune": 0.002, "retrieve": 0.05, "decode": 0.547}


def make_run(
    folder: Path,
    system: str = "skip",
    accuracy: float = 0.5,
    *,
    seed: int = 0,
    questions: Iterable[int] = range(40),
    flops: float = 50e9,
    ms: float = 1_000.0,
    drafted: float = 0.0,
    tokens: int = 64,
    alone: bool = True,
    fields: Callable[[int], dict[str, Any]] = lambda question: {},
    header: dict[str, Any] | None = None,
    file: str = "okvqa/val.jsonl",
    sha256: str | None = None,
    **about: Any,
) -> Path:
    """A finished run that is right on a fraction `accuracy` of its questions, in a fixed order; if
    not `alone`, by several processes."""
    folder.mkdir(parents=True)
    questions = list(questions)
    order = random.Random(1).sample(questions, len(questions))
    right = set(order[: round(accuracy * len(order))])
    fast = set(sorted(questions)[: round(drafted * len(questions))])
    records = []
    for question in questions:
        fraction = 0.1 if question in fast else 1.0
        latency = fraction * ms * (1 + question % 5 / 50)
        records.append(
            {
                "question_id": question,
                "category": str(question % 3),
                "answer": "yes" if question in right else "no",
                "score": float(question in right),
                "route": "draft" if question in fast else "full",
                "tokens": 0 if question in fast else tokens,
                "passages": 0 if question in fast else 6,
                "edges": 7,
                "evidence": [],
                "flops": int(fraction * flops),
                "latency_ms": latency,
                "stage_ms": {name: part * latency for name, part in STAGES.items()},
                "peak_memory_bytes": 1_300_000_000,
                **fields(question),
            }
        )
    if not alone:
        records = [{k: v for k, v in r.items() if k not in MEASURED_ALONE} for r in records]
    run = {
        "system": system,
        "seed": seed,
        "questions": {"file": file, "sha256": sha256 or hashlib.sha256(file.encode()).hexdigest()},
        "index": {"name": "wordnet", "passages": 10},
        "components": {},
        "config": {"preset": "pocket", "encode": {"scales": [256, 768]}},
        **about,
    }
    (folder / "run.json").write_text(json.dumps(run))
    lines = [json.dumps(record) + "\n" for record in records]
    (folder / "predictions.jsonl").write_text("".join(lines))
    summary = {**HEADER, **(header or {}), **run, **summarise(records), "bad_rows": []}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder
