"""Validation questions answered in full: what `fast_path.py` and `confidence.py` have in common."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.progress import Progress

from skipqa.cli.console import err, prepare_process
from skipqa.training.answered import Answered, Asked, answer_all, sample
from skipqa.training.pipelines import Source, open_workers
from skipqa.training.run import Run
from skipqa.training.stage1 import mixture


def options_of(description: str, limit: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="OK-VQA, VQAv2 and COCO")
    parser.add_argument("--pocket-kb", type=Path, required=True, help="with its index in index/")
    parser.add_argument("--limit", type=int, default=limit, help="questions of OK-VQA")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--workers", type=int, help="processes; as many as there are cores")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def answer_validation(
    options: argparse.Namespace, counts: Mapping[str, int], source: Source
) -> tuple[list[Asked], Answered]:
    """So many questions of each source, down the full path whatever the drafter says."""
    prepare_process()
    asked = sample(mixture.read(options.data, options.pocket_kb), "val", counts, options.seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_workers(source, options.workers) as workers,
        Progress(console=err) as bar,
    ):
        task = bar.add_task("answering in full")

        def progress(_what: str, done: int, total: int, _loss: float | None) -> None:
            bar.update(task, completed=done, total=total)

        run = Run(Path(folder), options.seed, progress)
        return asked, answer_all(asked, workers, run, "validation")
