"""`skipqa batch` with two workers and SIGKILL in the middle, here and on a running cluster: every
row is answered once. Ray is started several times, which takes minutes on a small machine."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.data")

import pyarrow as arrow
from batch_runs import COMMAND, check_same, draw_images, rows_of
from pyarrow import parquet

from skipqa.pipeline import Pipeline

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds workers in /proc"),
]

QUESTIONS = ("What color is it?", "Where does this come from?")
NUM_QUESTIONS = 12
ENOUGH_S = 300


@dataclass(frozen=True, slots=True)
class Task:
    """Twelve questions, each a fragment, for two workers."""

    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def done(self) -> dict[Path, int]:
        """Finished outputs, each with the number of its file: another one was written again."""
        return {path: path.stat().st_ino for path in self.out.glob("*.parquet")}

    def start(self, *more: str, **environment: str) -> subprocess.Popen[str]:
        given = (str(self.folder / "asked.parquet"), str(self.out), "--untrained", "--json")
        return subprocess.Popen(
            [*COMMAND, *given, "--workers", "2", "--fragment", "1", *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    def finish(self, *more: str, **environment: str) -> dict[str, Any]:
        run = self.start(*more, **environment)
        said, told = run.communicate(timeout=ENOUGH_S)
        assert run.returncode == 0, told
        print(told)  # -s shows what a user sees
        summary: dict[str, Any] = json.loads(said)
        return summary


def wait_until(true: Callable[[], object], run: subprocess.Popen[str]) -> None:
    ends = time.monotonic() + ENOUGH_S
    while not true():
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.fixture
def task(tmp_path: Path, home: Path) -> Task:
    draw_images(tmp_path)
    numbers = range(NUM_QUESTIONS)
    asked = {
        "id": [100 + number for number in numbers],
        "image": ["disc.png"] * NUM_QUESTIONS,
        "question": [QUESTIONS[number % 2] for number in numbers],
    }
    parquet.write_table(arrow.table(asked), tmp_path / "asked.parquet")
    return Task(tmp_path)


def check_all(task: Task, pipeline: Pipeline) -> None:
    """Every row once, with the pipeline's answer."""
    rows = rows_of(task.out)
    assert [row["id"] for row in rows] == list(range(100, 100 + NUM_QUESTIONS))
    for number, row in enumerate(rows[:2]):
        check_same(row, pipeline, task.folder / "disc.png", QUESTIONS[number])
    for number, row in enumerate(rows):
        assert row["answer"] == rows[number % 2]["answer"]
    assert not list(task.out.glob("*.partial"))


def kill_in_the_middle(task: Task, *more: str, **environment: str) -> dict[Path, int]:
    """SIGKILL for the command: nothing can be tidied up. What was finished by then."""
    run = task.start(*more, **environment)
    try:
        wait_until(lambda: len(task.done) >= 2, run)
    finally:
        run.kill()
        run.wait()
    time.sleep(5)  # its workers notice, and may finish what they are at
    assert 2 <= len(task.done) < NUM_QUESTIONS
    return task.done


def test_a_kill_and_a_second_run_answer_every_question_once(task: Task, pipeline: Pipeline) -> None:
    done = kill_in_the_middle(task)
    (task.out / "asked-000000000-000000001.parquet.1-abcdef01.partial").touch()
    summary = task.finish()
    assert summary["questions"] == NUM_QUESTIONS
    assert summary["workers"] == 2
    assert summary["fragments_done_before"] == len(done)
    assert summary["answered_now"] == NUM_QUESTIONS - len(done)
    assert {path: task.done[path] for path in done} == done  # what was done was not done again
    check_all(task, pipeline)


def workers_of(run: subprocess.Popen[str]) -> list[int]:
    """Processes with our actor that are below this run."""
    parents, named = {}, []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = status.read_text().partition(" (")
            parents[int(pid)] = int(rest.rpartition(")")[2].split()[1])
            title = status.with_name("cmdline").read_text()
        except OSError:  # it has ended
            continue
        if title.startswith("ray::") and "Answering" in title:
            named.append(int(pid))

    def is_below(pid: int) -> bool:
        return pid == run.pid or (pid in parents and is_below(parents[pid]))

    return [pid for pid in named if is_below(pid)]


def test_a_killed_worker_is_replaced(task: Task, pipeline: Pipeline) -> None:
    run = task.start()
    try:
        wait_until(lambda: task.done, run)
        wait_until(lambda: len(workers_of(run)) == 2, run)
        os.kill(workers_of(run)[0], signal.SIGKILL)
        said, told = run.communicate(timeout=ENOUGH_S)
    finally:
        run.kill()
    assert run.returncode == 0, told
    assert json.loads(said)["questions"] == NUM_QUESTIONS
    check_all(task, pipeline)


def refusal(task: Task, *more: str, **environment: str) -> str:
    """The last line of a run that ends with exit code 2."""
    run = task.start(*more, **environment)
    _, told = run.communicate(timeout=ENOUGH_S)
    assert run.returncode == 2
    assert "Traceback" not in told
    return told.splitlines()[-1]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Cluster:
    address: str
    kept_by: subprocess.Popen[str]
    token: Path

    def stop(self) -> None:
        self.kept_by.terminate()
        self.kept_by.wait(60)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two cores, and a token. It is started from another folder, and its environment does not say
    where skipqa is."""
    folder = Path(tempfile.mkdtemp(prefix="r"))  # Ray's sockets take at most 107 characters
    port = free_port()
    options = {
        "port": port,
        "num-cpus": 2,
        "temp-dir": folder / "ray",
        "ray-client-server-port": free_port(),
        "dashboard-agent-listen-port": free_port(),
        "min-worker-port": 0,  # any; the default range might hold one of these
        "max-worker-port": 0,
        "object-store-memory": 128 << 20,
        "include-dashboard": "false",
    }
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    with (folder / "log").open("w") as log:
        kept = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
                *(f"--{name}={value}" for name, value in options.items()),
            ],
            stdout=log,
            stderr=log,
            text=True,
            cwd=folder,
            env={**environment, "RAY_USAGE_STATS_ENABLED": "0"},
        )
    try:
        wait_until(lambda: "Ray runtime started" in (folder / "log").read_text(), kept)
        yield Cluster(f"127.0.0.1:{port}", kept, token)
    finally:
        kept.terminate()
        kept.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def test_a_cluster_answers_and_outlives_a_kill(
    task: Task, pipeline: Pipeline, cluster: Cluster
) -> None:
    named = ("--address", cluster.address)
    known = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(cluster.token)}
    assert refusal(task, *named) == (
        f"error: the Ray cluster at {cluster.address} cannot be used: it asks for its token; set "
        f"RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH if the token is not where Ray keeps it"
    )
    done = kill_in_the_middle(task, *named, **known)
    summary = task.finish(*named, **known)
    assert summary["workers"] == 2
    assert summary["answered_now"] == NUM_QUESTIONS - len(done)
    assert {path: task.done[path] for path in done} == done
    check_all(task, pipeline)

    assert cluster.kept_by.poll() is None
    cluster.stop()
    told = refusal(task, *named, **known)
    assert told.startswith(f"error: no Ray cluster answers at {cluster.address} (Connection ref")
