"""Does saliency find what the question names? Kept tokens against COCO's boxes.

For each class with boxes in a photo, the question "What is this CLASS used for?" goes through
`Pocket.look_closer` and `prune` under several configurations. Each row's saliency is read on
one 24 x 24 grid; the score is the share of the 64 best cells inside the class's boxes, relative
to the most that is possible where the boxes are smaller than 64 cells. Classes whose boxes
cover more than half the photo are left out. A photo counts once, with the mean of its classes.

The folder holds `boxes.jsonl` (rows {"image", "boxes": [[class, cx, cy, w, h], …]}, relative)
and `photos.zip`; photos may also be in other archives.

    python benchmarks/saliency_boxes.py --coco FOLDER [--archive MORE.zip]
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from common import ask, look, opened
from rich.progress import track
from rich.table import Table
from torch import Tensor

from skipqa.backbones.networks.efficientnet_lite import EfficientNetLite
from skipqa.backbones.presets.pocket import Pocket
from skipqa.cli.console import err, out, prepare_process
from skipqa.config import EncodeConfig, PruneConfig
from skipqa.costs.environment import write_results
from skipqa.evaluation.statistics import mean_interval, paired_bootstrap
from skipqa.stages.prune import prune, top_positions
from skipqa.trace import StageRecord
from skipqa.types import Budget, Question, VisualTokens

GRID, KEPT = 24, 64  # a ninth of the cells
LARGE, SMALL = 0.5, 0.1  # of the photo, covered by a class's boxes

Boxes = list[tuple[str, float, float, float, float]]


class Row(NamedTuple):
    """A configuration of the encoder and of what makes a concept relevant."""

    encode: EncodeConfig
    names: bool = True  # whether naming a concept or its kind counts, beside the cosine
    overview_weight: float = 0.0

    def label(self) -> dict[str, Any]:
        relevance = "cosine" + " + names" * self.names + " + overview" * bool(self.overview_weight)
        scales, locality = list(self.encode.scales), self.encode.locality
        return {"scales": scales, "locality": locality, "relevance": relevance}


SHIPPED = EncodeConfig()
REFERENCE = Row(SHIPPED)  # the others are compared with it
ROWS = (
    *(Row(EncodeConfig(scales=(size,), locality=1.0)) for size in SHIPPED.scales),
    Row(replace(SHIPPED, locality=1.0)),
    REFERENCE,
    Row(replace(SHIPPED, locality=0.3)),
    Row(replace(SHIPPED, scales=SHIPPED.scales[1:])),
    Row(SHIPPED, names=False),
    Row(SHIPPED, overview_weight=PruneConfig().overview_weight),
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
    pocket = Pocket(SHIPPED)
    forget = run_once_a_photo(pocket.vision.network)
    question = cache(lambda name: ask(pocket, f"What is this {name} used for?"))
    rows = list(map(json.loads, (options.coco / "boxes.jsonl").open()))
    random.Random(options.seed).shuffle(rows)

    scored: list[list[tuple[float, float]]] = [[] for _ in ROWS]  # (all, small) of each photo
    chance: list[float] = []
    with opened(options.coco / "photos.zip", *options.archive) as images:
        usable = [row for row in rows if row["image"] in images and areas_of(row["boxes"])]
        for photo in track(usable[: options.photos], "looking", console=err):
            image = images[photo["image"]]()
            areas = areas_of(photo["boxes"])
            forget()
            chance.append(mean([random_share(area) for area in areas.values()]))
            for row, scores in zip(ROWS, scored, strict=True):
                pocket.config = row.encode
                tokens = look(pocket, image)
                probs = {
                    name: share_inside(saliency(tokens, question(name), row, pocket), area)
                    for name, area in areas.items()
                }
                small = [probs[name] for name, area in areas.items() if area.mean() < SMALL]
                scores.append((mean(list(probs.values())), mean(small)))

    reference, _ = zip(*scored[ROWS.index(REFERENCE)], strict=True)
    measured = []
    table = Table(
        "scales, px", "locality", "relevance", "all", "boxes under 10 %", "less reference"
    )
    for row, scores in zip(ROWS, scored, strict=True):
        every, small_ones = (list(column) for column in zip(*scores, strict=True))
        found = mean_interval(every)
        on_small = mean_interval([fraction for fraction in small_ones if not math.isnan(fraction)])
        less = paired_bootstrap(every, reference)
        label = row.label()
        measured.append(
            label | {"all": asdict(found), "small": asdict(on_small), "less": asdict(less)}
        )
        table.add_row(
            *(", ".join(map(str, label["scales"])), f"{label['locality']:g}", label["relevance"]),
            *(f"{found.mean:.3f}", f"{on_small.mean:.3f}", f"{less.difference:+.3f}"),
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


def run_once_a_photo(network: EfficientNetLite) -> Callable[[], None]:
    """Let the tower keep its map of each input size: rows differ in what they make of it.

    Call what is returned when the photo changes.
    """
    run, maps = network.forward, dict[int, Tensor]()

    def forward(pixels: Tensor) -> Tensor:
        size = pixels.shape[-1]
        if size not in maps:
            maps[size] = run(pixels)
        return maps[size]

    network.forward = forward  # type: ignore[assignment,method-assign]
    return maps.clear


def saliency(tokens: VisualTokens, question: Question, row: Row, pocket: Pocket) -> Tensor:
    """[24 * 24] whatever the row's own grid is."""
    if not row.names:
        question = replace(question, words=())
    config, allowed = PruneConfig(row.overview_weight), Budget(KEPT, 0)
    kept = prune(tokens, question, allowed, pocket.concepts, config, StageRecord("prune"))
    map_11gg = kept.saliency.view(1, 1, tokens.grid, tokens.grid)
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


def share_inside(saliency_V: Tensor, area_V: Tensor) -> float:
    inside = area_V[top_positions(saliency_V, KEPT)].sum().item()
    return inside / min(KEPT, area_V.sum().item())


def random_share(area_V: Tensor) -> float:
    """What `share_inside` is on average for cells drawn at random."""
    return KEPT * area_V.mean().item() / min(KEPT, area_V.sum().item())


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


if __name__ == "__main__":
    main()
