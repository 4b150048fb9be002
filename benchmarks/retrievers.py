"""How do sparse region queries compare with dense ones and with late interaction?

Questions of Pocket-KB's `val` whose passages are its own run to the regions once; then SKIP,
`skip-dpr` and `skip-colbert` retrieve for them from one index, which needs embeddings. Recall is
measured on all questions, accuracy on the first few. Nothing is drafted.

    skipqa index build embedded pocket-kb/passages.jsonl --embeddings
    python benchmarks/retrievers.py --pocket-kb pocket-kb --index embedded
"""

from __future__ import annotations

import argparse
import io
import random
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track
from rich.table import Table

from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.evaluation import systems
from skipqa.evaluation.records import RECALL_AT, recall
from skipqa.evaluation.reports.markdown import percent, points
from skipqa.evaluation.statistics import Comparison, mean_interval, paired_bootstrap
from skipqa.image import open_image
from skipqa.pipeline import Pipeline, load
from skipqa.state import State
from skipqa.tasks.example import Example
from skipqa.tasks.pocket_kb import POCKET_KB
from skipqa.trace import Trace

COMPARED = ("skip", "skip-dpr", "skip-colbert")
UNIT_INTERVAL = (0.0, 1.0)
Columns = dict[str, dict[str, list[float]]]  # recall, score and FLOPs of retrieval, by system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pocket-kb", type=Path, required=True, help="made by `skipqa data`")
    parser.add_argument("--index", type=Path, required=True, help="of its passages, embedded")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--read", type=int, default=120, help="of these, answered")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    base = load(index=options.index)
    pipelines = {name: systems.build(name, base) for name in COMPARED}
    examples = draw(base, POCKET_KB.load(options.pocket_kb, "val"), options.seed)
    drawn = examples[: options.questions]
    columns = measure(pipelines, drawn, options.read, options.pocket_kb / "photos.zip")
    found = {name: summarised(columns, name) for name in COMPARED}
    results = {
        "seed": options.seed,
        "questions": len(drawn),
        "read": options.read,
        "recall_at": RECALL_AT,
        "passages": len(base.library),
        "systems": found,
    }
    show(found)
    err.print(f"written to {write_results(results, 'retrievers', options.out)}")


def draw(base: Pipeline, examples: Sequence[Example], seed: int) -> list[Example]:
    """Those about one thing, of one step, whose passages the index has."""
    library = base.library
    possible = [
        one
        for one in examples
        if "crowded" not in one.subsets
        and len(one.gold) == 1
        and any(library.row_of(passage) is not None for passage in one.gold[0])
    ]
    random.Random(seed).shuffle(possible)
    return possible


def measure(
    pipelines: dict[str, Pipeline], examples: Sequence[Example], read: int, photos: Path
) -> Columns:
    columns: Columns = {name: defaultdict(list) for name in pipelines}
    base = pipelines["skip"]
    with zipfile.ZipFile(photos) as archive:
        for number, example in enumerate(track(examples, "retrieving", console=err)):
            image = open_image(io.BytesIO(archive.read(example.image)))
            regions = base.run(State(image, example.question), stop="zoom")
            for name, pipeline in pipelines.items():
                trace = Trace()
                state = pipeline.run(regions, start="retrieve", stop="retrieve", trace=trace)
                found = [one.passage for one in state.retrieved.passages]
                columns[name]["recall"].append(recall(example, found[:RECALL_AT]))
                columns[name]["flops"].append(trace.flops)
                if number < read:
                    answer = pipeline.run(state, start="verify").answer.text
                    prediction = POCKET_KB.prediction(example, answer)
                    columns[name]["score"].append(POCKET_KB.score(example, prediction))
    return columns


def summarised(columns: Columns, name: str) -> dict[str, Any]:
    own, sparse = columns[name], columns["skip"]
    measured: dict[str, Any] = {"retrieval_gflops": float(np.mean(own["flops"])) / 1e9}
    for column in ("recall", "score"):
        measured[column] = asdict(mean_interval(own[column], bounds=UNIT_INTERVAL))
        if name != "skip":
            measured[f"{column}_less_skip"] = asdict(paired_bootstrap(own[column], sparse[column]))
    return measured


def show(found: dict[str, dict[str, Any]]) -> None:
    table = Table(
        "system", f"recall@{RECALL_AT} %", "less skip", "accuracy %", "less skip", "GFLOPs"
    )
    for name, row in found.items():
        cells = [name]
        for column in ("recall", "score"):
            cells.append(percent(row[column]))
            less = row.get(f"{column}_less_skip")
            cells.append("" if less is None else points(Comparison(**less)))
        table.add_row(*cells, f"{row['retrieval_gflops']:.2f}")
    out.print(table)


if __name__ == "__main__":
    main()
