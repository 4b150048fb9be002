"""The vision encoder on whole photos at each input size: accuracy and confidence.

Photos of about 216 px are resized to squares of each size; reported are top-1 and top-4 accuracy
and the mean probability of the first class.

    python benchmarks/seeing.py --entities FOLDER
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from common import imagenet_photos, opened
from PIL import Image
from rich.progress import track
from rich.table import Table
from torch import Tensor

from skipqa.backbones.presets.pocket import Pocket
from skipqa.backbones.presets.pocket_vision import pixels
from skipqa.backbones.weights.convert import imagenet_synsets
from skipqa.cli.console import err, out, prepare_process
from skipqa.config import EncodeConfig
from skipqa.costs.environment import write_results
from skipqa.evaluation.statistics import mean_interval

SIZES = (224, 256, 260, 288, 384)
MEASURES = ("top_1", "top_4", "confidence")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entities", type=Path, required=True, help="photos.jsonl, photos.zip")
    parser.add_argument("--photos", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    pocket = Pocket(EncodeConfig())
    classes = imagenet_synsets()
    photos = imagenet_photos(options.entities, options.seed)[: options.photos]
    scores: dict[tuple[int, str], list[float]] = defaultdict(list)
    with opened(options.entities / "photos.zip") as images:
        for photo in track(photos, "seeing", console=err):
            image = images[photo.name]()
            for size in SIZES:
                probable, first = class_probabilities(pocket, image, size).topk(4)
                named = [classes[index] for index in first.tolist()]
                measured = (named[0] == photo.synset, photo.synset in named, probable[0].item())
                for measure, score in zip(MEASURES, measured, strict=True):
                    scores[size, measure].append(score)

    sizes: list[dict[str, Any]] = [
        {"size": size} | {name: asdict(mean_interval(scores[size, name])) for name in MEASURES}
        for size in SIZES
    ]
    table = Table("input px", "top-1", "top-4", "mean top probability")
    for row in sizes:
        top_1, top_4, confidence = (row[name]["mean"] for name in MEASURES)
        table.add_row(
            str(row["size"]), f"{100 * top_1:.1f} %", f"{100 * top_4:.1f} %", f"{confidence:.2f}"
        )
    out.print(table)
    results = {"photos": len(photos), "seed": options.seed, "sizes": sizes}
    err.print(f"written to {write_results(results, 'seeing', options.out)}")


@torch.inference_mode()
def class_probabilities(pocket: Pocket, image: Image.Image, size: int) -> Tensor:
    """[C] of the whole image, computed like the overview of `Pocket.encode_low_res`."""
    map_1Fhw = pocket.vision.network(pixels(image, size))
    logits_1C = pocket.vision.network.classifier(map_1Fhw.mean((2, 3)))
    return logits_1C[0].softmax(-1)


if __name__ == "__main__":
    main()
