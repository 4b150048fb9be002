"""What does the fast path answer, and what does it cost? Drafts beside full answers, paired.

Questions of OK-VQA and, a quarter as many, perceptual ones (VQAv2's `val`; of the photos held out
of training, COCO's) go all the way through the pipeline whatever the drafter says. Then every
threshold is known: how many questions the drafter would answer alone, and what that loses.

    python benchmarks/fast_path.py --data DATA --pocket-kb FOLDER
    python benchmarks/fast_path.py --data DATA --pocket-kb FOLDER --split held-out

The second names the threshold to ship: three questions in ten are drafted, or fewer where that
would lose more than a point. Nothing is chosen on val.
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
from torch import Tensor

from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.evaluation.statistics import paired_bootstrap
from skipqa.nn.drafter import calibrate_threshold
from skipqa.pipeline import Pipeline
from skipqa.tasks.okvqa import normalise
from skipqa.training.pathway.gather import Source, spread
from skipqa.training.stage1 import mixture
from skipqa.training.stage1.mixture import Example

A_JOB = 16  # questions
PERCEPTUAL = {"val": "vqav2", "held-out": "coco"}
PERCEPTUAL_RATIO = 4  # a question of these for so many of the others
TO_DRAFT = 0.3  # what a fast path is built for
BESIDE = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6)  # thresholds, beside the shipped one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="OK-VQA, VQAv2 and COCO")
    parser.add_argument("--pocket-kb", type=Path, required=True, help="made by `skipqa data`")
    parser.add_argument("--split", choices=PERCEPTUAL, default="val")
    parser.add_argument("--limit", type=int, default=2_227, help="questions of OK-VQA")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--workers", type=int, help="processes; as many as there are cores")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    mixed = mixture.read(options.data, options.pocket_kb)
    photos = {row: where for where, row in mixed.photos.items()}
    wanted = {
        "okvqa": options.limit,
        PERCEPTUAL[options.split]: options.limit // PERCEPTUAL_RATIO,
    }
    asked: list[tuple[tuple[Path, str], Example]] = []
    for source, count in wanted.items():
        rows = mixed.select(source, options.split)
        random.Random(options.seed).shuffle(rows)
        examples = (mixed.examples[row] for row in rows[:count])
        asked += [(photos[example.photo], example) for example in examples]
    jobs = [(asked[at : at + A_JOB],) for at in range(0, len(asked), A_JOB)]
    with Progress(console=err) as bar:
        task = bar.add_task("answering in full", total=len(jobs))
        found = spread(
            scored,
            Source(),
            jobs,
            lambda done, _: bar.update(task, completed=done),
            workers=options.workers,
        )
    confidence, drafted, full = torch.tensor([row for part in found for row in part]).T
    sources = [example.source for _, example in asked]
    shipped_at = Source().load().config.draft.threshold
    results: dict[str, Any] = {
        "split": options.split,
        "seed": options.seed,
        "shipped": {
            name: routed(confidence[rows], drafted[rows], full[rows], shipped_at)
            for name, rows in _groups(sources).items()
        },
        "by_threshold": [routed(confidence, drafted, full, at) for at in BESIDE],
    }
    if options.split == "held-out":
        affordable = calibrate_threshold(confidence, drafted, full).threshold
        chosen = max(affordable, float(confidence.quantile(1 - TO_DRAFT)))
        results["chosen"] = routed(confidence, drafted, full, chosen)
    table = Table("", "threshold", "questions", "drafted %", "full %", "with drafts %", "points")
    for name, row in results["shipped"].items():
        _show(table, f"as shipped, {name}", row)
    for row in results["by_threshold"]:
        _show(table, "all", row)
    if chosen := results.get("chosen"):
        _show(table, "to ship", chosen)
    out.print(table)
    subject = f"fast_path_{options.split.replace('-', '_')}"
    err.print(f"written to {write_results(results, subject, options.out)}")


def scored(
    pipeline: Pipeline, asked: Sequence[tuple[tuple[Path, str], Example]]
) -> list[tuple[float, float, float]]:
    """Of each question how sure the drafter was, and what its answer and the full one score."""
    found = []
    for (archive, name), example in asked:
        with zipfile.ZipFile(archive) as photos:
            photo = io.BytesIO(photos.read(name))
        answer = pipeline.answer(photo, example.question, fast_path=False)
        draft = answer.trace["draft"].result
        scores = (example.answers.get(normalise(text), 0.0) for text in (draft.answer, answer.text))
        found.append((draft.confidence, *scores))
    return found


def routed(confidence: Tensor, drafted: Tensor, full: Tensor, threshold: float) -> dict[str, Any]:
    fast = confidence > threshold
    answered = torch.where(fast, drafted, full)
    return {
        "threshold": threshold,
        "questions": len(full),
        "rate": float(fast.float().mean()),
        "full": float(full.mean()),
        "accuracy": float(answered.mean()),
        "gain": asdict(paired_bootstrap(answered.tolist(), full.tolist())),
    }


def _groups(sources: Sequence[str]) -> dict[str, list[int]]:
    groups = {"all": list(range(len(sources)))}
    for row, source in enumerate(sources):
        groups.setdefault(source, []).append(row)
    return groups


def _show(table: Table, name: str, row: dict[str, Any]) -> None:
    gain = {key: 100 * row["gain"][key] for key in ("difference", "low", "high")}
    table.add_row(
        name,
        f"{row['threshold']:.3f}",
        f"{row['questions']:,}",
        f"{100 * row['rate']:.1f}",
        f"{100 * row['full']:.1f}",
        f"{100 * row['accuracy']:.1f}",
        f"{gain['difference']:+.1f} ({gain['low']:+.1f} to {gain['high']:+.1f})",
    )


if __name__ == "__main__":
    main()
