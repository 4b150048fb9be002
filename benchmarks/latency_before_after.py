"""Latency of two checkouts side by side: `skipqa ask` as a process, and answers within a process.

Both run in the same interpreter with PYTHONPATH set to the checkout, and alternate run by run and
question by question, so that whatever else the machine does hits both alike. Reported are the
medians and their ratio, after / before, with a bootstrap interval over pairs. The first run of
`ask` and the first questions of a process load networks; they are not counted.

    python benchmarks/latency_before_after.py --before DIR --after DIR \
        --questions okvqa/val.jsonl --images okvqa/val.zip [--limit 100]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ask import ask_command, run_once
from rich.progress import track
from rich.table import Table

from skipqa import assets
from skipqa.cli.console import err, out
from skipqa.cli.demo import QUESTION
from skipqa.costs.environment import write_results
from skipqa.files import read_jsonl

RESAMPLES, LEVEL = 10_000, 0.95
WARM_UP = 2  # questions
# Needs of a checkout no more than `load`, `answer` and the trace's latency.
WORKER = """
import json, sys
from skipqa.pipeline import load
replies, sys.stdout = sys.stdout, sys.stderr
pipeline = load()
for line in sys.stdin:
    asked = json.loads(line)
    answer = pipeline.answer(asked["image"], asked["question"], fast_path=asked["fast_path"])
    found = {"latency_ms": answer.trace.latency_ms, "answer": answer.text}
    print(json.dumps(found), file=replies, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Checkout:
    folder: Path

    def __post_init__(self) -> None:
        if not (self.folder / "skipqa" / "pipeline.py").is_file():
            sys.exit(f"{self.folder} is no checkout of skipqa")

    @property
    def process(self) -> dict[str, Any]:
        """How a process of this checkout is started; its idle threads must not spin."""
        added = {"PYTHONPATH": str(self.folder), "OMP_WAIT_POLICY": "PASSIVE"}
        return {"cwd": self.folder, "env": {**os.environ, **added}}

    @property
    def commit(self) -> str | None:
        command = ["git", "-C", str(self.folder), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of the medians; `ratio` is after / before."""

    before: float
    after: float
    ratio: float
    low: float
    high: float
    count: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a checkout")
    parser.add_argument("--after", type=Path, required=True, help="another one")
    parser.add_argument("--questions", type=Path, required=True, help="JSON Lines")
    parser.add_argument("--images", type=Path, required=True, help="a zip or a folder")
    parser.add_argument("--limit", type=int, default=100, help="questions, drawn at random")
    parser.add_argument("--runs", type=int, default=7, help="of `skipqa ask`, per checkout")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    checkouts = {
        "before": Checkout(options.before.resolve()),
        "after": Checkout(options.after.resolve()),
    }
    rows = list(read_jsonl(options.questions))
    random.Random(options.seed).shuffle(rows)
    rows = rows[: options.limit]

    asked = ask_runs(checkouts, options.runs)
    measured = {
        f"ask, {name}": ratio_of_medians(
            *([run[key] for run in runs] for runs in asked.values()), options.seed
        )
        for key, name in (("wall_s", "wall, s"), ("pipeline_s", "pipeline, s"))
    }
    with tempfile.TemporaryDirectory() as folder:
        images = unpacked([row["image"] for row in rows], options.images, Path(folder))
        pairs = [(image, row["question"]) for image, row in zip(images, rows, strict=True)]
        answered = answers(checkouts, pairs)
    latencies = [[found["latency_ms"] for found in answered[name]] for name in checkouts]
    measured["answer, ms"] = ratio_of_medians(*latencies, options.seed)
    both = zip(answered["before"], answered["after"], strict=True)
    same = sum(one["answer"] == other["answer"] for one, other in both)

    table = Table("median", "before", "after", "after / before")
    for name, found in measured.items():
        interval = f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"
        table.add_row(name, f"{found.before:.2f}", f"{found.after:.2f}", interval)
    out.print(table)
    out.print(f"{same} of {len(rows)} answers are the same")
    results = {
        "commits": {name: checkout.commit for name, checkout in checkouts.items()},
        "seed": options.seed,
        "questions": len(rows),
        "same_answers": same,
        "medians": {name: asdict(found) for name, found in measured.items()},
        "ask": asked,
        "answer_ms": dict(zip(checkouts, latencies, strict=True)),
    }
    err.print(f"written to {write_results(results, 'latency_before_after', options.out)}")


def ask_runs(checkouts: Mapping[str, Checkout], runs: int) -> dict[str, list[dict[str, Any]]]:
    """`skipqa ask` on the demo's photo; the first run of each is not counted."""
    command = ask_command(assets.fetch(assets.DEMO_PHOTO) / "coffee.png", QUESTION)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    for _ in track(range(runs + 1), "skipqa ask", console=err):
        for name, checkout in checkouts.items():
            found[name].append(run_once(command, **checkout.process))
    return {name: measured[1:] for name, measured in found.items()}


def answers(
    checkouts: Mapping[str, Checkout], pairs: Sequence[tuple[Path, str]]
) -> dict[str, list[dict[str, Any]]]:
    """Of each checkout the latency and the answer of every question, in turn."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    with working(checkouts["before"]) as before, working(checkouts["after"]) as after:
        workers = {"before": before, "after": after}
        for image, question in pairs[:WARM_UP]:
            for worker in workers.values():
                tell(worker, image, question, fast_path=False)  # loads every network
                tell(worker, image, question)
        for image, question in track(pairs, "answering", console=err):
            for name, worker in workers.items():
                found[name].append(tell(worker, image, question))
    return found


@contextmanager
def working(checkout: Checkout) -> Iterator[subprocess.Popen[str]]:
    """A process that answers one question per line until its input ends."""
    pipe: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", WORKER], **pipe, **checkout.process) as worker:
        yield worker


def tell(
    worker: subprocess.Popen[str], image: Path, question: str, *, fast_path: bool = True
) -> dict[str, Any]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    asked = {"image": str(image), "question": question, "fast_path": fast_path}
    print(json.dumps(asked), file=worker.stdin, flush=True)
    if not (line := worker.stdout.readline()):
        sys.exit("a worker ended in the middle; what it said is above")
    return json.loads(line)


def unpacked(names: Sequence[str], images: Path, folder: Path) -> list[Path]:
    """The photos as files: both checkouts open them alike."""
    if images.is_dir():
        return [images.resolve() / name for name in names]
    with zipfile.ZipFile(images) as photos:
        return [Path(photos.extract(name, folder)) for name in names]


def ratio_of_medians(before: Sequence[float], after: Sequence[float], seed: int) -> Ratio:
    """The interval is that of the percentile bootstrap over pairs."""
    both, generator = np.array([before, after]), np.random.default_rng(seed)
    drawn = (both[:, generator.integers(len(before), size=len(before))] for _ in range(RESAMPLES))
    medians = np.array([np.median(sample, axis=1) for sample in drawn])
    low, high = np.quantile(
        medians[:, 1] / medians[:, 0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    ).tolist()
    middle, other = statistics.median(before), statistics.median(after)
    return Ratio(middle, other, other / middle, low, high, len(before))


if __name__ == "__main__":
    main()
