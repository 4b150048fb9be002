"""Does encoding several images or texts at once pay on a CPU, and does it change a bit?

Photos at low resolution through the pocket vision encoder, one by one and in batches; texts through
the text encoder, one by one and together. `Pipeline.answer_batch` shares only what is exact.

    python benchmarks/batches.py --questions okvqa/val.jsonl --images okvqa/val.zip
"""

from __future__ import annotations

import argparse
import json
import time
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from skipqa.backbones.presets.pocket_vision import pixels
from skipqa.cli.console import err, out
from skipqa.costs.environment import write_results
from skipqa.image import open_image
from skipqa.pipeline import load

BATCH, REPEATS = 8, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True, help="a zip of the photos")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    rows = [json.loads(line) for line in options.questions.read_text().splitlines()[:48]]
    backbone = load().backbone
    with zipfile.ZipFile(options.images) as photos:
        images = [open_image(BytesIO(photos.read(row["image"]))) for row in rows[: 3 * BATCH]]
    batch = torch.cat([pixels(image, 256) for image in images])
    texts = [row["question"] for row in rows]
    results: dict[str, Any] = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results[str(threads)] = measured(backbone, batch, texts)
    table = Table("threads", "maps identical", "largest difference", "speed-up", "texts identical")
    for threads, found in results.items():
        table.add_row(
            threads,
            f"{found['maps_identical']} of {len(batch)}",
            f"{found['largest_difference']:.1e}",
            f"{found['speed_up']:.2f}x",
            f"{found['texts_identical']} of {len(texts)}",
        )
    out.print(table)
    err.print(f"written to {write_results(results, 'batches', options.out)}")


@torch.inference_mode()
def measured(backbone: Any, images: Tensor, texts: list[str]) -> dict[str, Any]:
    network = backbone.vision.network
    alone = torch.cat([network(image[None]) for image in images])
    together = torch.cat([network(some) for some in images.split(BATCH)])
    seconds = {"alone": [], "together": []}
    for _ in range(REPEATS):
        for name, size in (("alone", 1), ("together", BATCH)):
            start = time.perf_counter()
            for some in images.split(size):
                network(some)
            seconds[name].append(time.perf_counter() - start)
    packed = backbone.encode_texts(texts).embeddings
    single = torch.cat([backbone.encode_texts([text]).embeddings for text in texts])
    return {
        "maps_identical": sum(torch.equal(*pair) for pair in zip(alone, together, strict=True)),
        "largest_difference": float((alone - together).abs().max()),
        "speed_up": min(seconds["alone"]) / min(seconds["together"]),
        "texts_identical": sum(torch.equal(*pair) for pair in zip(packed, single, strict=True)),
    }


if __name__ == "__main__":
    main()
