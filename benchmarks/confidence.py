"""Is the confidence of answers calibrated? Validation questions, through the whole pipeline.

Questions of OK-VQA, VQAv2 and Pocket-KB are answered on both routes with the bundled checkpoint;
the confidence is compared with the score of the answer, in bins of equal counts. Nothing is fitted
here: `skipqa train confidence` does that on held-out questions.

    python benchmarks/confidence.py --data DATA --pocket-kb FOLDER
"""

from __future__ import annotations

from typing import Any

from rich.table import Table
from validation import answer_validation, options_of

from skipqa.cli.console import err, out
from skipqa.costs.environment import write_results
from skipqa.training.answered import by_source
from skipqa.training.confidence import ConfidenceSettings, calibration
from skipqa.training.pipelines import Source


def main() -> None:
    options = options_of(__doc__, limit=480)
    counts = ConfidenceSettings(questions=options.limit).counts("val")
    source = Source(index=("default", options.pocket_kb / "index"))
    asked, answered = answer_validation(options, counts, source)
    config = source.config
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
