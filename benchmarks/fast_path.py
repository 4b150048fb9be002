"""What does the fast path answer, and what does it cost? Drafts and full answers, paired.

Validation questions of OK-VQA and, a quarter as many, perceptual ones of VQAv2 go the full path
whatever the drafter says. Then every threshold is known: how many questions the drafter would
answer alone, and what that loses. Nothing is chosen here: `skipqa train fast_path` chooses the
threshold on held-out questions, with the same code.

    python benchmarks/fast_path.py --data DATA --pocket-kb FOLDER
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
from skipqa.training.answered import answer_all, sample
from skipqa.training.fast_path import STAGE, FastPathSettings, routed, summary
from skipqa.training.pipelines import Source, open_workers
from skipqa.training.run import Run
from skipqa.training.stage1 import mixture

THRESHOLDS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6)  # next to the shipped one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="OK-VQA, VQAv2 and COCO")
    parser.add_argument("--pocket-kb", type=Path, required=True, help="made by `skipqa data`")
    parser.add_argument("--limit", type=int, default=2_227, help="questions of OK-VQA")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--workers", type=int, help="processes; as many as there are cores")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    mixed = mixture.read(options.data, options.pocket_kb)
    settings, source = FastPathSettings(questions=options.limit), Source()
    asked = sample(mixed, "val", settings.counts("val"), options.seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_workers(source, options.workers) as workers,
        Progress(console=err) as bar,
    ):
        task = bar.add_task("answering in full")

        def progress(_what: str, done: int, total: int, _loss: float | None) -> None:
            bar.update(task, completed=done, total=total)

        answered = answer_all(asked, workers, Run(Path(folder), options.seed, progress), STAGE.name)
    results: dict[str, Any] = {
        "split": "val",
        "seed": options.seed,
        "shipped": summary(answered, asked, source.config.draft.threshold),
        "by_threshold": [routed(answered, threshold) for threshold in THRESHOLDS],
    }
    table = Table("", "threshold", "questions", "drafted %", "full %", "with drafts %", "points")
    for name, row in results["shipped"].items():
        _show(table, f"as shipped, {name}", row)
    for row in results["by_threshold"]:
        _show(table, "all", row)
    out.print(table)
    err.print(f"written to {write_results(results, 'fast_path_val', options.out)}")


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
