"""OK-VQA: the summaries of finished runs of `skipqa eval vqa` in one results file.

Enters: the folder of the runs, one system each. Leaves: a results file; machine, versions, commit
and date are those of the runs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from skipqa.cli.console import err
from skipqa.evaluation.reports.runs import read_run

KEPT = (
    *("num_questions", "accuracy", "fast_path_rate", "flops_mean", "tokens_mean"),
    *("passages_mean", "latency_ms", "peak_memory_bytes"),
)
HEADER = ("machine", "python", "versions", "commit", "date")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True, help="a folder of run folders")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    folders = sorted(path.parent for path in options.runs.glob("*/summary.json"))
    runs = {run.system: run for run in map(read_run, folders)}
    abouts = [run.about for run in runs.values()]
    summaries = [run.header for run in runs.values()]
    assert all(about["questions"] == abouts[0]["questions"] for about in abouts)
    header = {name: summaries[0][name] for name in HEADER}
    assert all(one["machine"] == header["machine"] for one in summaries)
    assert len({one["commit"].rstrip("+") for one in summaries}) == 1
    # As they were run: of several commands, each is named, and so is a tree with changes
    for name in ("commit", "command"):
        header[name] = "; ".join(dict.fromkeys(one[name] for one in summaries))
    results = {
        "questions": abouts[0]["questions"],
        "systems": {name: {key: run.header[key] for key in KEPT} for name, run in runs.items()},
    }
    month = header["date"][:7].replace("-", "")
    path = options.out / f"okvqa_{header['machine']['cores']}-core-cpu_{month}.json"
    path.write_text(json.dumps({**header, "results": results}, indent=1) + "\n")
    err.print(f"written to {path}")


if __name__ == "__main__":
    main()
