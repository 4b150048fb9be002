"""Do regions find what one query of the whole picture misses? Gold passages among the first four.

Each question of Pocket-KB's `val` that needs a passage goes as far as retrieval, in six ways: one
query of the picture as the tower sees it at once ("low_res"); one of a closer look as well, all
tokens alike ("picture"); one of all those tokens as far as each matters to the question, the dense
baseline's ("all tokens"); one of the kept tokens ("kept tokens"); a query a region ("regions"); and
a query a region, small ones seen for themselves, which is SKIP ("skip"). Nothing is drafted,
verified or read.

    python benchmarks/small_things.py --pocket-kb FOLDER
"""

from __future__ import annotations

import argparse
import io
import random
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from rich.table import Table
from skipqa.evaluation.systems.changes import up_to_retrieval, with_config, with_stages

from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.evaluation.records import RECALL_AT, recall
from skipqa.evaluation.statistics import mean_interval, paired_bootstrap
from skipqa.evaluation.systems.ablations import (
    DENSE_PASSAGES,
    LOW_RES_ONLY,
    NO_ZOOM,
    ONE_REGION,
    global_retrieval,
    without_pruning,
)
from skipqa.files import read_jsonl
from skipqa.pipeline import Pipeline
from skipqa.training.pipelines import Source, spread
from skipqa.types import KeptTokens, VisualTokens

Row = dict[str, Any]
A_JOB = 8  # questions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pocket-kb", type=Path, required=True, help="made by `skipqa data`")
    parser.add_argument("--small", type=int, default=600, help="questions about small things")
    parser.add_argument("--others", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--workers", type=int, help="processes; as many as there are cores")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    folder: Path = options.pocket_kb
    rows = [row for row in read_jsonl(folder / "val.jsonl") if row["gold"]]
    random.Random(options.seed).shuffle(rows)
    groups = {"small": options.small, "others": options.others}
    drawn = {
        name: [row for row in rows if ("small" in row["subset"]) == (name == "small")][:count]
        for name, count in groups.items()
    }
    source = Source(index=folder / "index")
    measured: dict[str, Any] = {}
    table = Table("one query of, or by", *(f"{name} ({len(r)})" for name, r in drawn.items()))
    for name, some in drawn.items():
        jobs = [(folder, some[at : at + A_JOB]) for at in range(0, len(some), A_JOB)]
        with Progress(console=err) as bar:
            task = bar.add_task(name, total=len(jobs))
            found = spread(
                retrieved,
                source,
                jobs,
                lambda done, _, task=task: bar.update(task, completed=done),  # type: ignore[misc]
                workers=options.workers,
            )
        recalls = {way: [value for part in found for value in part[way]] for way in found[0]}
        measured[name] = {
            "questions": len(some),
            "recall": {way: asdict(mean_interval(values)) for way, values in recalls.items()},
            "skip_less": {
                way: asdict(paired_bootstrap(recalls["skip"], values))
                for way, values in recalls.items()
                if way != "skip"
            },
        }
    for way in measured["small"]["recall"]:
        cells = (measured[name]["recall"][way] for name in drawn)
        table.add_row(way, *(f"{c['mean']:.3f} ({c['low']:.2f} to {c['high']:.2f})" for c in cells))
    out.print(table)
    for way, less in measured["small"]["skip_less"].items():
        out.print(f"small: skip less {way} {_points(less)}")
    results = {"seed": options.seed, "recall_at": RECALL_AT, **measured}
    err.print(f"written to {write_results(results, 'small_things', options.out)}")


def _points(interval: dict[str, float]) -> str:
    mean, low, high = (100 * interval[name] for name in ("difference", "low", "high"))
    return f"{mean:+.1f} points ({low:+.1f} to {high:+.1f})"


def ways(base: Pipeline) -> dict[str, Pipeline]:
    skip = up_to_retrieval(base)
    all_tokens = with_config(
        without_pruning(skip, 0),
        regions=ONE_REGION,
        zoom=NO_ZOOM,
        retrieve={"per_region": DENSE_PASSAGES},
    )
    picture = with_stages(all_tokens, prune=all_alike)
    return {
        "low_res": with_config(picture, budget=LOW_RES_ONLY),
        "picture": picture,
        "all tokens": all_tokens,
        "kept tokens": global_retrieval(skip, 0),
        "regions": with_config(skip, zoom=NO_ZOOM),
        "skip": skip,
    }


def all_alike(tokens: VisualTokens, *_: object) -> KeptTokens:
    """prune: whatever is asked, every token counts the same."""
    return KeptTokens(torch.arange(len(tokens)), torch.ones(len(tokens)), tokens)


def retrieved(base: Pipeline, folder: Path, rows: Sequence[Row]) -> dict[str, list[float]]:
    """Of each way the recall of every question."""
    pipelines = ways(base)
    found: dict[str, list[float]] = {way: [] for way in pipelines}
    with zipfile.ZipFile(folder / "photos.zip") as photos:
        for row in rows:
            photo = photos.read(row["image"])
            gold = [frozenset(step) for step in row["hops"] or [row["gold"]]]
            for way, pipeline in pipelines.items():
                answer = pipeline.answer(io.BytesIO(photo), row["question"], fast_path=False)
                passages = answer.trace["retrieve"].result.passages
                ids = [passage.passage.id for passage in passages]
                found[way].append(recall(gold, ids, ())[f"recall@{RECALL_AT}"])
    return found


if __name__ == "__main__":
    main()
