"""Time and memory of `skipqa ask` as a user sees them: a fresh process, several times.

Wall time from start to exit, the part spent in the pipeline, and the process's peak memory.

    python benchmarks/ask.py [--photo FILE --question TEXT] [--runs 7]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from skipqa import assets
from skipqa.cli.console import err, out
from skipqa.cli.demo import QUESTION
from skipqa.costs.environment import write_results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photo", type=Path, help="default: the demo's photo")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    photo = options.photo or assets.fetch(assets.DEMO_PHOTO) / "coffee.png"
    command = ask_command(photo, options.question)
    runs = [run_once(command) for _ in range(options.runs + 1)][1:]  # the first fills caches

    table = Table("of the process", "median", "worst")
    rows = (("wall_s", "wall, s"), ("pipeline_s", "pipeline, s"), ("peak_gb", "peak memory, GB"))
    for key, label in rows:
        values = [run[key] for run in runs]
        table.add_row(label, f"{statistics.median(values):.2f}", f"{max(values):.2f}")
    out.print(table)
    results = {"runs": runs, "photo": photo.name, "question": options.question}
    err.print(f"written to {write_results(results, 'ask', options.out)}")


def ask_command(photo: Path, question: str) -> list[str]:
    started = (sys.executable, "-c", "from skipqa.cli.main import run; run()")
    return [*started, "ask", str(photo), question, "--json"]


def run_once(
    command: list[str], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> dict[str, float | str]:
    """Seconds, gigabytes and the answer of one process."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    start = time.perf_counter()
    with subprocess.Popen(command, cwd=cwd, env=env, **pipes) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed")
    answer = json.loads(printed)
    kilobytes = usage.ru_maxrss / (1 if sys.platform == "linux" else 1024)
    return {
        "wall_s": round(wall, 3),
        "pipeline_s": round(answer["latency_ms"] / 1_000, 3),
        "peak_gb": round(kilobytes * 1024 / 1e9, 3),
        "answer": answer["answer"],
    }


if __name__ == "__main__":
    main()
