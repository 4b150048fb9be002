"""What does the fast path answer, and what does it cost? Drafts and full answers, paired.

Validation questions of OK-VQA and, a quarter as many, perceptual ones of VQAv2 go the full path
whatever the drafter says. Then every threshold is known: how many questions the drafter would
answer alone, and what that loses. Nothing is chosen here: `skipqa train fast_path` chooses the
threshold on held-out questions, with the same code.

    python benchmarks/fast_path.py --data DATA --pocket-kb FOLDER
"""

from __future__ import annotations

from typing import Any

from rich.table import Table
from validation import answer_validation, options_of

from skipqa.claims.shipping import shipped
from skipqa.cli.console import err, out
from skipqa.costs.environment import write_results
from skipqa.training.fast_path import FastPathSettings, routed, summary
from skipqa.training.pipelines import Source

THRESHOLDS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6)  # next to the shipped one


def main() -> None:
    options = options_of(__doc__, limit=2_227)
    counts, source = FastPathSettings(questions=options.limit).counts("val"), Source()
    asked, answered = answer_validation(options, counts, source)
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
    path = write_results(results, "fast_path_val", options.out, shipped())
    err.print(f"written to {path}")


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
