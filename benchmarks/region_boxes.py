"""Do regions fit the objects on a photo? Clusters of tokens (A) and MobileSAM's boxes (B).

One class with boxes is drawn for each photo, and the training-free pipeline runs up to `regions`
with the question "What is this CLASS used for?". The score of a variant is the IoU of each of the
class's boxes with the region that fits it best, averaged over the photo. Both variants get the same
kept tokens. The time is that of the regions stage alone, with the network already loaded.

The folder holds `boxes.jsonl` (rows {"image", "boxes": [[class, cx, cy, w, h], …]}, relative)
and `photos.zip`; photos may also be in other archives.

    python benchmarks/region_boxes.py --coco FOLDER [--archive MORE.zip]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import opened
from PIL import Image
from rich.progress import track
from rich.table import Table

from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.evaluation.statistics import mean_interval, paired_bootstrap
from skipqa.pipeline import load
from skipqa.stages.regions import iou
from skipqa.state import State
from skipqa.trace import Trace
from skipqa.types import Box

SMALL = 0.1  # of the photo, covered by the class's boxes on average
VARIANTS = ("clusters", "boxes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coco", type=Path, required=True, help="boxes.jsonl, photos.zip")
    parser.add_argument("--archive", type=Path, action="append", default=[], help="more photos")
    parser.add_argument("--photos", type=int, default=100)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    base = load(trained=False, report=err.print)
    base.backbone.segmenter.boxes(Image.new("RGB", (64, 64)), [(0.5, 0.5)])  # loads the network
    variants = {name: base.with_config(regions={"proposals": name}) for name in VARIANTS}
    rows = list(map(json.loads, (options.coco / "boxes.jsonl").open()))
    draw = random.Random(options.seed)
    draw.shuffle(rows)

    small: list[bool] = []
    fits: dict[str, list[float]] = {name: [] for name in VARIANTS}
    counts: dict[str, list[int]] = {name: [] for name in VARIANTS}
    latency_ms: dict[str, list[float]] = {name: [] for name in VARIANTS}
    flops: dict[str, int] = {}
    with opened(options.coco / "photos.zip", *options.archive) as images:
        usable = [row for row in rows if row["image"] in images and row["boxes"]]
        for photo in track(usable[: options.photos], "finding regions", console=err):
            image = images[photo["image"]]()
            name = draw.choice(sorted({name for name, *_ in photo["boxes"]}))
            truth = [corners(*box) for label, *box in photo["boxes"] if label == name]
            areas = [(right - left) * (bottom - top) for left, top, right, bottom in truth]
            small.append(statistics.fmean(areas) < SMALL)
            pruned = base.run(State(image, f"What is this {name} used for?"), stop="prune")
            for variant, pipeline in variants.items():
                trace = Trace()
                state = pipeline.run(pruned, start="regions", stop="regions", trace=trace)
                latency_ms[variant].append(trace["regions"].ms)
                fits[variant].append(best_fit(truth, [region.box for region in state.regions]))
                counts[variant].append(len(state.regions))
                flops[variant] = max(flops.get(variant, 0), trace["regions"].flops)

    table = Table("regions", "IoU", "IoU, small objects", "regions", "ms", "GFLOPs")
    measured: dict[str, Any] = {}
    for variant, scores in fits.items():
        every = mean_interval(scores)
        of_small = mean_interval([s for s, is_small in zip(scores, small, strict=True) if is_small])
        measured[variant] = {
            "iou": asdict(every),
            "iou_small": asdict(of_small),
            "regions_mean": statistics.fmean(counts[variant]),
            "latency_ms": statistics.median(latency_ms[variant]),
            "flops_max": flops[variant],
        }
        table.add_row(
            *(variant, f"{every.mean:.3f}", f"{of_small.mean:.3f}"),
            f"{measured[variant]['regions_mean']:.1f}",
            *(f"{measured[variant]['latency_ms']:.0f}", f"{flops[variant] / 1e9:.2f}"),
        )
    out.print(table)
    results = {
        "photos": len(small),
        "small": sum(small),
        "seed": options.seed,
        "variants": measured,
        "boxes_less_clusters": asdict(paired_bootstrap(fits["boxes"], fits["clusters"])),
    }
    err.print(f"written to {write_results(results, 'region_boxes', options.out)}")


def corners(cx: float, cy: float, width: float, height: float) -> Box:
    return cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2


def best_fit(truth: Sequence[Box], boxes: Sequence[Box]) -> float:
    return statistics.fmean(max(iou(thing, box) for box in boxes) for thing in truth)


if __name__ == "__main__":
    main()
