"""How long retrieval takes over several indexes, against one index of the same passages.

Each question goes through the pipeline up to its regions once. Then both libraries are searched
with the same regions, in turn, several times: the median milliseconds and CPU milliseconds of the
stage, and how many of the K' passages are the same.

    python benchmarks/library.py --questions okvqa/val.jsonl --images okvqa/val.zip \
        --pooled POOLED --index default
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.progress import track

from skipqa.cli.console import err, prepare_process
from skipqa.costs.environment import write_results
from skipqa.evaluation import harness
from skipqa.knowledge import Library
from skipqa.pipeline import load
from skipqa.stages import retrieve
from skipqa.state import State
from skipqa.tasks import jsonl
from skipqa.tasks.photos import Photos
from skipqa.trace import StageRecord
from skipqa.types import RetrievedPassage

TIMES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--pooled", type=Path, required=True, help="one index of all passages")
    parser.add_argument("--index", action="append", required=True, help="may be repeated")
    parser.add_argument("--limit", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    photos = Photos(options.images)
    rows = harness.draw(jsonl.read(options.questions, photos)[0], options.limit, options.seed)
    pooled = load(index=options.pooled)
    opened = Library.open(options.index, trained_query=pooled.components.sparse_query)
    several = retrieve.Retrieve(
        retrieve.build(pooled.parts).querier, opened, pooled.config.retrieve
    )
    stages = {"pooled": retrieve.build(pooled.parts), "several": several}
    measured: dict[str, dict[str, list[float]]] = {
        name: {"ms": [], "cpu_ms": []} for name in stages
    }
    same = []
    for row in track(rows, "asking", console=err):
        state = pooled.run(State(photos.open(row.image), row.question), stop="zoom")
        found = {name: timed(stage, state, measured[name]) for name, stage in stages.items()}
        ids = [{p.passage.id for p in passages} for passages in found.values()]
        same.append(len(ids[0] & ids[1]) / max(1, len(ids[0])))
    results: dict[str, Any] = {
        name: {"indexes": list(names), "passages": size}
        | {what: round(median(values), 2) for what, values in measured[name].items()}
        for name, names, size in (
            ("pooled", pooled.library.names, len(pooled.library)),
            ("several", opened.names, len(opened)),
        )
    }
    for what in ("ms", "cpu_ms"):
        results[f"ratio_{what}"] = round(results["several"][what] / results["pooled"][what], 2)
    results |= {"questions": len(rows), "same_passages": round(mean(same), 3)}
    err.print_json(data=results)
    err.print(f"written to {write_results(results, 'library', options.out)}")


def timed(
    stage: retrieve.Retrieve, state: State, into: dict[str, list[float]]
) -> tuple[RetrievedPassage, ...]:
    """The passages, and the median over a few searches of what they took."""
    walls, cpus = [], []
    for _ in range(TIMES):
        wall, cpu = time.perf_counter(), time.process_time()
        found = stage(state, StageRecord("retrieve")).retrieved.passages
        walls.append(1e3 * (time.perf_counter() - wall))
        cpus.append(1e3 * (time.process_time() - cpu))
    into["ms"].append(median(walls))
    into["cpu_ms"].append(median(cpus))
    return found


if __name__ == "__main__":
    main()
