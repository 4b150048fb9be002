"""Does saliency find what the question names? Kept tokens against COCO's boxes.

For each class with boxes in a photo, the training-free pipeline runs up to `prune` with the
question "What is this CLASS used for?" under several configurations. Each saliency map is read on
a 24 x 24 grid; the score is the fraction of the 64 best cells inside the class's boxes, relative
to the largest possible one where the boxes have fewer than 64 cells. Classes whose boxes cover
more than half the photo are left out. A photo counts once, with the mean of its classes.

The folder holds `boxes.jsonl` (rows {"image", "boxes": [[class, cx, cy, w, h], …]}, relative)
and `photos.zip`; photos may also be in other archives.

    python benchmarks/saliency_boxes.py --coco FOLDER [--archive MORE.zip]
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from common import ask, opened
from rich.progress import track
from rich.table import Table
from torch import Tensor

from skipqa.backbones.presets.pocket import Pocket
from skipqa.cli.console import err, out, prepare_process
from skipqa.config import EncodeConfig, PruneConfig
from skipqa.costs.environment import write_results
from skipqa.evaluation.statistics import mean_interval, paired_bootstrap
from skipqa.pipeline import Pipeline, load
from skipqa.stages.prune import top_positions
from skipqa.state import State

GRID, KEPT = 24, 64  # a ninth of the cells
LARGE, SMALL = 0.5, 0.1  # of the photo, covered by a class's boxes

Boxes = list[tuple[str, float, float, float, float]]


class Row(NamedTuple):
    """A configuration of the encoder and of what makes a concept relevant."""

    encode: EncodeConfig
    names: bool = True  # naming a concept or its kind counts too, not only the cosine
    overview_weight: float = 0.0

    def label(self) -> dict[str, Any]:
        relevance = "cosine" + " + names" * self.names + " + overview" * bool(self.overview_weight)
        scales, locality = list(self.encode.scales), self.encode.locality
        return {"scales": scales, "locality": locality, "relevance": relevance}


DEFAULT = EncodeConfig()
REFERENCE = Row(DEFAULT)  # the others are compared with it
ROWS = (
    *(Row(EncodeConfig(scales=(size,), locality=1.0)) for size in DEFAULT.scales),
    Row(replace(DEFAULT, locality=1.0)),
    REFERENCE,
    Row(replace(DEFAULT, locality=0.3)),
    Row(replace(DEFAULT, scales=DEFAULT.scales[1:])),
    Row(DEFAULT, names=False),
    Row(DEFAULT, overview_weight=PruneConfig().overview_weight),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coco", type=Path, required=True, help="boxes.jsonl, photos.zip")
    parser.add_argument("--archive", type=Path, action="append", default=[], help="more photos")
    parser.add_argument("--photos", type=int, default=150)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    pipelines = build()
    question = cache(lambda text: ask(pipelines[REFERENCE].backbone, text))
    rows = list(map(json.loads, (options.coco / "boxes.jsonl").open()))
    random.Random(options.seed).shuffle(rows)

    scored: list[list[tuple[float, float]]] = [[] for _ in ROWS]  # (all, small) of each photo
    chance: list[float] = []
    with opened(options.coco / "photos.zip", *options.archive) as images:
        usable = [row for row in rows if row["image"] in images and areas_of(row["boxes"])]
        for photo in track(usable[: options.photos], "scoring", console=err):
            image = images[photo["image"]]()
            areas = areas_of(photo["boxes"])
            asked = {name: f"What is this {name} used for?" for name in areas}
            chance.append(mean([random_fraction(area) for area in areas.values()]))
            seen: dict[EncodeConfig, State] = {}  # tokens depend on nothing else, untrained
            for row, scores in zip(ROWS, scored, strict=True):
                pipeline = pipelines[row]
                if row.encode not in seen:
                    first = State(image, next(iter(asked.values())))
                    seen[row.encode] = pipeline.run(first, stop="look")
                found = {}
                for name, text in asked.items():
                    words = question(text).words if row.names else ()
                    state = seen[row.encode].add(question=replace(question(text), words=words))
                    found[name] = fraction_inside(saliency(pipeline, state), areas[name])
                small = [found[name] for name, area in areas.items() if area.mean() < SMALL]
                scores.append((mean(list(found.values())), mean(small)))

    reference, _ = zip(*scored[ROWS.index(REFERENCE)], strict=True)
    measured = []
    table = Table(
        "scales, px", "locality", "relevance", "all", "boxes under 10 %", "minus reference"
    )
    for row, scores in zip(ROWS, scored, strict=True):
        every, small_ones = (list(column) for column in zip(*scores, strict=True))
        all_classes = mean_interval(every)
        on_small = mean_interval([fraction for fraction in small_ones if not math.isnan(fraction)])
        less = paired_bootstrap(every, reference)
        label = row.label()
        measured.append(
            label | {"all": asdict(all_classes), "small": asdict(on_small), "less": asdict(less)}
        )
        table.add_row(
            *(", ".join(map(str, label["scales"])), f"{label['locality']:g}", label["relevance"]),
            *(f"{all_classes.mean:.3f}", f"{on_small.mean:.3f}", f"{less.difference:+.3f}"),
        )
    out.print(table)
    out.print(f"chance {mean(chance):.3f}")
    results = {
        "photos": len(chance),
        "seed": options.seed,
        "chance": mean(chance),
        "reference": ROWS.index(REFERENCE),
        "rows": measured,
    }
    err.print(f"written to {write_results(results, 'saliency_boxes', options.out)}")


def build() -> dict[Row, Pipeline]:
    """A training-free pipeline for each row; the backbone itself mixes by locality."""
    base = load(trained=False)
    backbone = cache(lambda locality: Pocket(replace(DEFAULT, locality=locality)))
    return {
        row: base.with_config(
            encode=asdict(row.encode), prune={"overview_weight": row.overview_weight}
        ).with_backbone(backbone(row.encode.locality))
        for row in ROWS
    }


def saliency(pipeline: Pipeline, state: State) -> Tensor:
    """[24 * 24] whatever the row's own grid is."""
    kept = pipeline.run(state, start="prune", stop="prune").kept
    map_11gg = kept.saliency.view(1, 1, kept.tokens.grid, kept.tokens.grid)
    return F.interpolate(map_11gg, (GRID, GRID), mode="bilinear").flatten()


def areas_of(boxes: Boxes) -> dict[str, Tensor]:
    """For each class that does not fill the photo, the cells that its boxes touch: [24 * 24]."""
    areas: dict[str, Tensor] = {}
    for name, cx, cy, width, height in boxes:
        area = areas.setdefault(name, torch.zeros(GRID, GRID))
        left, top = (max(0, math.floor((c - s / 2) * GRID)) for c, s in ((cx, width), (cy, height)))
        right, bottom = (math.ceil((c + s / 2) * GRID) for c, s in ((cx, width), (cy, height)))
        area[top:bottom, left:right] = 1
    return {name: area.flatten() for name, area in areas.items() if 0 < area.mean() <= LARGE}


def fraction_inside(saliency_V: Tensor, area_V: Tensor) -> float:
    inside = area_V[top_positions(saliency_V, KEPT)].sum().item()
    return inside / min(KEPT, area_V.sum().item())


def random_fraction(area_V: Tensor) -> float:
    """The expected `fraction_inside` of cells drawn at random."""
    return KEPT * area_V.mean().item() / min(KEPT, area_V.sum().item())


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


if __name__ == "__main__":
    main()
