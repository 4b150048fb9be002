"""Do region queries find what one query for the whole image misses? Recall of gold passages at 4.

Each question of Pocket-KB's `val` that needs a passage runs up to retrieval in six ways: one query
for the image at low resolution ("low_res"); one at high resolution, all tokens weighted alike
("picture"); one for all tokens weighted by saliency, as the dense baseline has it ("all tokens");
one for the kept tokens ("kept tokens"); one query per region ("regions"); and one query per region
with zoom, which is SKIP ("skip"). Nothing is drafted, verified or decoded. Small are things that
cover less than a tenth of the image, alone or in a crowd.

    python benchmarks/small_things.py --pocket-kb FOLDER
"""

from __future__ import annotations

import argparse
import io
import random
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from skipqa.claims.shipping import shipped
from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import available_cores, write_results
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
from skipqa.image import open_image
from skipqa.parallel import spread
from skipqa.pipeline import Pipeline, load
from skipqa.stages.prune import Prune
from skipqa.state import State
from skipqa.tasks.example import Example
from skipqa.tasks.pocket_kb import POCKET_KB
from skipqa.types import Question, VisualTokens

Piece = tuple[int, Sequence[Example]]  # its number, questions
Recalls = dict[str, list[float]]  # of each way, in the order of the questions
PIECE_SIZE = 8
SMALL = 0.1  # of the image's area


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pocket-kb", type=Path, required=True, help="made by `skipqa data`")
    parser.add_argument("--small", type=int, default=600, help="questions about small things")
    parser.add_argument("--others", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--workers", type=int, help="processes; default: all cores")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    folder: Path = options.pocket_kb
    examples = [one for one in POCKET_KB.load(folder, "val") if one.gold]
    random.Random(options.seed).shuffle(examples)
    groups = {"small": options.small, "others": options.others}
    drawn = {
        name: [one for one in examples if is_small(one) == (name == "small")][:count]
        for name, count in groups.items()
    }
    jobs = options.workers or available_cores()
    measured: dict[str, Any] = {}
    table = Table("queries for", *(f"{name} ({len(r)})" for name, r in drawn.items()))
    for name, some in drawn.items():
        starts = range(0, len(some), PIECE_SIZE)
        pieces = [(number, some[at : at + PIECE_SIZE]) for number, at in enumerate(starts)]
        found: dict[int, Recalls] = {}
        with Progress(console=err) as bar:
            task = bar.add_task(name, total=len(pieces))
            for (number, _), part in spread(partial(prepare, folder), pieces, jobs):
                found[number] = part
                bar.advance(task)
        recalls = {
            way: [value for number in range(len(pieces)) for value in found[number][way]]
            for way in found[0]
        }
        measured[name] = {
            "questions": len(some),
            "recall": {way: asdict(mean_interval(values)) for way, values in recalls.items()},
            "skip_less": {
                way: asdict(paired_bootstrap(recalls["skip"], values))
                for way, values in recalls.items()
                if way != "skip"
            },
            "crowded": sum("crowded" in one.subsets for one in some),
            # zoom off in both, then what zoom adds
            "regions_less_one_query": asdict(
                paired_bootstrap(recalls["regions"], recalls["kept tokens"])
            ),
            "zoom_adds": asdict(paired_bootstrap(recalls["skip"], recalls["regions"])),
        }
    for way in measured["small"]["recall"]:
        cells = (measured[name]["recall"][way] for name in drawn)
        table.add_row(way, *(f"{c['mean']:.3f} ({c['low']:.2f} to {c['high']:.2f})" for c in cells))
    out.print(table)
    small = measured["small"]
    for way, less in small["skip_less"].items():
        out.print(f"small: skip minus {way} {_points(less)}")
    out.print(f"small: regions minus one query {_points(small['regions_less_one_query'])}")
    results = {"seed": options.seed, "recall_at": RECALL_AT, **measured}
    path = write_results(results, "small_things", options.out, shipped())
    err.print(f"written to {path}")


def is_small(example: Example) -> bool:
    if example.box is None:
        return "small" in example.subsets
    left, top, right, bottom = example.box
    return (right - left) * (bottom - top) < SMALL


def _points(interval: dict[str, float]) -> str:
    mean, low, high = (100 * interval[name] for name in ("difference", "low", "high"))
    return f"{mean:+.1f} points ({low:+.1f} to {high:+.1f})"


def ways(skip: Pipeline) -> dict[str, Pipeline]:
    all_tokens = without_pruning(skip, 0).with_config(
        regions=ONE_REGION, zoom=NO_ZOOM, retrieve={"per_region": DENSE_PASSAGES}
    )
    picture = all_tokens.with_stages(prune=lambda parts: Prune(EqualScorer()))
    return {
        "low_res": picture.with_config(budget=LOW_RES_ONLY),
        "picture": picture,
        "all tokens": all_tokens,
        "kept tokens": global_retrieval(skip, 0),
        "regions": skip.with_config(zoom=NO_ZOOM),
        "skip": skip,
    }


class EqualScorer:
    """Every token has the same saliency, whatever the question."""

    def __call__(self, tokens: VisualTokens, question: Question) -> tuple[Tensor, int]:
        return torch.ones(len(tokens)), 0

    def why(self, question: Question) -> str:
        return "all alike"


def prepare(folder: Path) -> Callable[[Piece], Recalls]:
    """In every process: the pipelines, and what each makes of a piece."""
    torch.set_num_threads(1)  # one process per core
    pipelines = ways(load(index=("default", folder / "index")))

    def recalls(piece: Piece) -> Recalls:
        _, examples = piece
        with zipfile.ZipFile(folder / "photos.zip") as photos:
            images = [open_image(io.BytesIO(photos.read(one.image))) for one in examples]
        encoded = [  # alike in all ways
            pipelines["skip"].run(State(image, one.question), stop="draft")
            for image, one in zip(images, examples, strict=True)
        ]
        return {
            way: [recall_of(pipeline, *pair) for pair in zip(encoded, examples, strict=True)]
            for way, pipeline in pipelines.items()
        }

    return recalls


def recall_of(pipeline: Pipeline, state: State, example: Example) -> float:
    found = pipeline.run(state, start="budget", stop="retrieve").retrieved.passages[:RECALL_AT]
    return recall(example, [one.passage for one in found])


if __name__ == "__main__":
    main()
