"""The summaries of finished runs of `skipqa eval`, one per system, in one results file.

Enters: a folder of runs of the same questions on one machine, and where those were spread over
processes, so that nothing was timed, another folder of the same systems that were timed, on any
machine and on some of the questions. Leaves: a results file with the machine, the versions, the
commit and the command of the first; the second keeps its own.

    python benchmarks/run_summaries.py --runs benchmarks/runs/okvqa-val --subject okvqa \
        --timed RUNS
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skipqa.cli.console import err
from skipqa.costs.environment import write_under
from skipqa.errors import UserError
from skipqa.evaluation.reports.runs import Run, read_run

COSTS = ("latency_ms", "peak_memory_bytes")  # of what was timed
KEPT = (
    *("num_questions", "accuracy", "recall@4", "fast_path_rate", "flops_mean", "tokens_mean"),
    *("passages_mean", *COSTS),
)
HEADER = ("machine", "python", "versions", "commit", "command", "date")
ASKED = ("questions", "task", "subset")
ANSWERED_WITH = ("index", "components", "config")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True, help="a folder of run folders")
    parser.add_argument("--timed", type=Path, help="runs that were timed, where these were not")
    parser.add_argument("--subject", required=True, help="what the results file is about")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    runs = read_runs(options.runs)
    results: dict[str, Any] = {
        "questions": next(iter(runs.values())).about["questions"],
        "systems": {name: {key: run.header[key] for key in KEPT} for name, run in runs.items()},
    }
    if options.timed is not None:
        timed = read_runs(options.timed)
        for name, system in results["systems"].items():
            if name not in timed:
                raise UserError(f"{options.timed} holds no run of {name}")
            check_alike(runs[name], timed[name], (*ASKED, *ANSWERED_WITH))
            system |= {key: timed[name].header[key] for key in COSTS}
        count = min(run.header["num_questions"] for run in timed.values())
        results["timed"] = joined_header(timed) | {"num_questions": count}
    path = write_under(joined_header(runs), results, options.subject, options.out)
    err.print(f"written to {path}")


def read_runs(folder: Path) -> dict[str, Run]:
    """By system, and pruner where there is one."""
    runs: dict[str, Run] = {}
    for path in sorted(folder.glob("*/summary.json")):
        run = read_run(path.parent)
        if run.variant in runs:
            raise UserError(f"{runs[run.variant].folder} and {run.folder} are of one system")
        runs[run.variant] = run
    if not runs:
        raise UserError(f"{folder} holds no finished run")
    first, *others = runs.values()
    for run in others:
        check_alike(first, run, ASKED)
        if run.header["machine"] != first.header["machine"]:
            raise UserError(f"{run.folder} is of another machine than {first.folder}")
    return runs


def check_alike(one: Run, other: Run, names: Sequence[str]) -> None:
    for name in names:
        if one.about.get(name) != other.about.get(name):
            raise UserError(f"{one.folder} and {other.folder} differ in their {name}")


def joined_header(runs: Mapping[str, Run]) -> dict[str, Any]:
    """Of several commands and commits, each is named, and so is a tree with changes."""
    headers = [run.header for run in runs.values()]
    header = {name: headers[0][name] for name in HEADER}
    for name in ("commit", "command"):
        told = dict.fromkeys(one[name] for one in headers if one[name] is not None)
        header[name] = "; ".join(told) or None
    return header


if __name__ == "__main__":
    main()
