"""Is the confidence of answers calibrated? Validation questions, through the whole pipeline.

Questions of OK-VQA, VQAv2 and Pocket-KB are answered on both routes with the bundled checkpoint;
the confidence is compared with the score of the answer, in bins of equal counts. Nothing is fitted
here: `skipqa train confidence` does that on held-out questions.

    python benchmarks/confidence.py --data DATA --pocket-kb FOLDER
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.training.answered import answer_all, by_source, sample
from skipqa.training.confidence import ConfidenceSettings, calibration
from skipqa.training.pipelines import Source, open_workers
from skipqa.training.run import Run
from skipqa.training.stage1 import mixture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="OK-VQA, VQAv2 and COCO")
    parser.add_argument("--pocket-kb", type=Path, required=True, help="with its index in index/")
    parser.add_argument("--limit", type=int, default=480, help="questions of OK-VQA")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--workers", type=int, help="processes; as many as there are cores")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    mixed = mixture.read(options.data, options.pocket_kb)
    counts = ConfidenceSettings(questions=options.limit).counts("val")
    asked = sample(mixed, "val", counts, options.seed)
    source = Source(index=options.pocket_kb / "index")
    with (
        tempfile.TemporaryDirectory() as folder,
        open_workers(source, options.workers) as workers,
        Progress(console=err) as bar,
    ):
        task = bar.add_task("answering in full")

        def progress(_what: str, done: int, total: int, _loss: float | None) -> None:
            bar.update(task, completed=done, total=total)

        answered = answer_all(
            asked, workers, Run(Path(folder), options.seed, progress), "confidence"
        )
    config = source.load().config
    results: dict[str, Any] = {"split": "val", "seed": options.seed} | {
        name: calibration(answered.select(rows), config.draft.threshold, config.confidence)
        for name, rows in by_source(asked).items()
    }
    table = Table("", "route", "questions", "confidence %", "score %", "calibration error %")
    for name in by_source(asked):
        for route, found in results[name].items():
            if "ece" in found:
                shown = (found["confidence"], found["score"], found["ece"])
                figures = (f"{100 * value:.1f}" for value in shown)
                table.add_row(name, route, f"{found['questions']:,}", *figures)
    out.print(table)
    err.print(f"written to {write_results(results, 'confidence_val', options.out)}")


if __name__ == "__main__":
    main()
