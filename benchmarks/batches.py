"""Do several images, texts, drafts or answers at once pay on a CPU, and what does it change?

Photos at low resolution through the pocket vision encoder, one by one and in batches; texts through
the text encoder, one by one and together; drafts of questions as long as each other; answers
decoded alone and with packed passes. `Pipeline.answer_batch` batches what pays: decoding.
Seconds are those of the processor, as other work may share the machine.

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
from skipqa.pipeline import Pipeline, load
from skipqa.stages import decode
from skipqa.stages.together import Waiting, decode_batch
from skipqa.state import State
from skipqa.trace import Trace

BATCH, REPEATS = 8, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True, help="a zip of the photos")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    rows = [json.loads(line) for line in options.questions.read_text().splitlines()[:48]]
    pipeline = load()
    backbone = pipeline.backbone
    with zipfile.ZipFile(options.images) as photos:
        images = [open_image(BytesIO(photos.read(row["image"]))) for row in rows[: 3 * BATCH]]
    batch = torch.cat([pixels(image, 256) for image in images])
    texts = [row["question"] for row in rows]
    results: dict[str, Any] = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results[str(threads)] = measured(backbone, batch, texts)
    torch.set_num_threads(1)
    states = [
        pipeline.run(State(image, row["question"]), stop="fuse")
        for image, row in zip(images, rows, strict=False)
    ]
    results["drafts"] = drafts(pipeline, states)
    results["decoding"] = decoding(pipeline, states)
    results["questions"] = len(states)
    table = Table("threads", "maps identical", "largest difference", "speed-up", "texts identical")
    for threads in ("1", "2"):
        found = results[threads]
        table.add_row(
            threads,
            f"{found['maps_identical']} of {len(batch)}",
            f"{found['largest_difference']:.1e}",
            f"{found['speed_up']:.2f}x",
            f"{found['texts_identical']} of {len(texts)}",
        )
    out.print(table)
    drafted = results["drafts"]
    out.print(f"drafts, {drafted['at_once']} at once: {drafted['speed_up']:.2f}x")
    table = Table("decoded together", "speed-up", "same answers", "largest difference, nats")
    for count, found in results["decoding"].items():
        same = f"{found['same_answers']} of {len(states)}"
        difference = f"{found['largest_difference']:.1e}"
        table.add_row(count, f"{found['speed_up']:.2f}x", same, difference)
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


@torch.inference_mode()
def drafts(pipeline: Pipeline, states: list[State]) -> dict[str, Any]:
    """Drafts of one question about several images, whose inputs are equally large."""
    drafter = pipeline.components.drafter
    assert drafter is not None
    some, question = states[:BATCH], states[0].question
    asked = question.states if question.drafter_states is None else question.drafter_states
    views = [state.low_res.drafter_features for state in some]
    words = [state.low_res.words for state in some]
    count = min(len(one.names) for one in words)
    embeddings = torch.stack([one.embeddings[:count] for one in words])
    probs = torch.stack([one.probs[:count] for one in words])
    visual, texts = torch.stack(views), asked.expand(len(some), *asked.shape)

    def run(size: int) -> float:
        start = time.process_time()
        for first in range(0, len(some), size):
            part = slice(first, first + size)
            drafter(visual[part], texts[part], words=(embeddings[part], probs[part]))
        return time.process_time() - start

    alone, together = zip(*((run(1), run(BATCH)) for _ in range(REPEATS)), strict=True)
    return {"at_once": BATCH, "speed_up": min(alone) / min(together)}


def decoding(pipeline: Pipeline, states: list[State]) -> dict[str, Any]:
    def run(together: int) -> tuple[float, list[State]]:
        waiting = [Waiting(state, Trace(), decode.build, pipeline.parts) for state in states]
        start, found = time.process_time(), []
        for first in range(0, len(waiting), together):
            found += decode_batch(waiting[first : first + together])
        return time.process_time() - start, found

    run(1)
    results: dict[str, Any] = {}
    for together in (2, 4, 8):
        seconds = {1: [], together: []}
        for _ in range(2):
            for count in seconds:
                spent, answered = run(count)
                seconds[count].append(spent)
                if count == 1:
                    alone = answered
        pairs = [(a.answer, b.answer) for a, b in zip(alone, answered, strict=True)]
        results[str(together)] = {
            "speed_up": min(seconds[1]) / min(seconds[together]),
            "same_answers": sum(a.text == b.text for a, b in pairs),
            "largest_difference": max(abs((a.log_prob or 0) - (b.log_prob or 0)) for a, b in pairs),
        }
    return results


if __name__ == "__main__":
    main()
