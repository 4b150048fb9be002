"""A run that is killed outright: what was answered is on disk, and the same command goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from asking import RUN, Told, gold, made_up, records_of

from skipqa.evaluation import harness
from skipqa.evaluation.harness import Entrant, EvalSet
from skipqa.tasks.jsonl import JSONL
from skipqa.tasks.photos import Photos

QUESTIONS = 500
SCRIPT = """
import sys
from functools import partial
from pathlib import Path

from asking import RUN, Slow, gold, made_up

from skipqa.evaluation import harness
from skipqa.evaluation.harness import Entrant, EvalSet, Workers
from skipqa.tasks.jsonl import JSONL
from skipqa.tasks.photos import Photos

if __name__ == "__main__":
    photos, out, jobs, count = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])
    rows = made_up(count)
    systems = [Slow(gold(rows))]
    workers = Workers(jobs, partial(list, systems)) if jobs > 1 else None
    asked = EvalSet(rows, Photos(photos), JSONL)
    harness.evaluate([Entrant(systems[0], out, RUN)], asked, workers=workers)
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_kill_loses_nothing(jobs: int, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "run.py").write_text(SCRIPT)
    out = tmp_path / "out"
    words = [sys.executable, tmp_path / "run.py", folder, out, str(jobs), str(QUESTIONS)]
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    process = subprocess.Popen(list(map(str, words)), env={**os.environ, "PYTHONPATH": paths})
    predictions = out / "predictions.jsonl"
    try:
        until = time.monotonic() + 120
        while not predictions.exists() or predictions.read_bytes().count(b"\n") < 5:
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert not (out / "summary.json").exists()
    written = predictions.read_bytes()
    whole = written[: written.rfind(b"\n") + 1]
    before = whole.count(b"\n")
    assert 5 <= before < QUESTIONS

    rows = made_up(QUESTIONS)
    left = Told(gold(rows), die_after=QUESTIONS - before)  # asked no more than what is left
    asked = EvalSet(rows, Photos(folder), JSONL)
    (summary,) = harness.evaluate([Entrant(left, out, RUN)], asked)
    assert predictions.read_bytes().startswith(whole)
    assert sorted(record["question_id"] for record in records_of(out)) == list(range(QUESTIONS))
    assert (summary["num_questions"], summary["accuracy"]["mean"]) == (QUESTIONS, 1.0)
