"""Work handed out to processes: all of it comes back, and no process outlives its use."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from failing_work import fail, unprepared
from torch import Tensor, nn

from skipqa.errors import UserError
from skipqa.parallel import InProcess, Workers, spread

# Says who works, for ever
ENDLESS = """
import itertools, os, signal, time
from functools import partial
from skipqa.parallel import spread

def work(piece):
    time.sleep(0.1)
    return os.getpid()

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    for _, worker in spread(partial(partial, work), itertools.count(), 2):
        print(worker, flush=True)
"""


def test_every_piece_comes_back_once() -> None:
    found = dict(spread(partial(partial, pow, 2), range(7), 3))
    assert found == {n: 2**n for n in range(7)}
    assert list(spread(partial(partial, pow, 2), [], 3)) == []
    assert multiprocessing.active_children() == []


def test_processes_end_when_no_more_is_wanted() -> None:
    some = spread(partial(partial, pow, 2), range(100), 2)
    next(some)
    assert len(multiprocessing.active_children()) == 2
    some.close()
    assert multiprocessing.active_children() == []


def test_a_process_that_dies_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="ended in the middle of its work"):
        list(spread(partial(partial, os._exit), [1], 2))


@pytest.mark.skipif(sys.platform == "win32", reason="has no process groups to signal")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(
    ending: signal.Signals, tmp_path: Path
) -> None:
    """By Ctrl-C, which reaches all of them, or by a kill of which they are told nothing."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    started = subprocess.Popen(
        [sys.executable, tmp_path / "endless.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert started.stdout is not None
    started.stdout.readline()
    if ending is signal.SIGINT:
        os.killpg(started.pid, ending)
    else:
        os.kill(started.pid, ending)
    _, said = started.communicate(timeout=30)  # returns when nobody holds these pipes any more
    assert started.returncode == -ending
    assert said.count("Traceback") == (ending is signal.SIGINT)  # of the script itself


def test_workers_are_kept_and_results_are_in_order() -> None:
    with Workers(partial(partial, pow, 2), 2) as workers:
        assert list(workers.map(range(9))) == [2**n for n in range(9)]
        first = {child.pid for child in multiprocessing.active_children()}
        assert len(first) == 2
        assert list(workers.map([3])) == [8]
        assert {child.pid for child in multiprocessing.active_children()} == first
    assert multiprocessing.active_children() == []


def test_work_that_is_given_up_leaves_nothing_to_the_next() -> None:
    with Workers(partial(partial, pow, 2), 2) as workers:
        some = workers.map(range(100))
        next(some)
        some.close()
        assert list(workers.map(range(5))) == [2**n for n in range(5)]


def test_errors_come_back_as_they_are_or_with_their_traceback() -> None:
    with Workers(partial(partial, fail), 1) as workers:
        with pytest.raises(UserError, match="no such photo"):
            list(workers.map([1]))
        with pytest.raises(RuntimeError, match=r"in a worker process:\n(.|\n)*ZeroDivisionError"):
            list(workers.map([0]))


def test_a_process_that_cannot_prepare_itself_says_why() -> None:
    with pytest.raises(UserError, match="no such index"):
        list(spread(partial(unprepared, UserError), range(5), 2))
    with pytest.raises(RuntimeError, match=r"in a worker process:\n(.|\n)*no such index"):
        list(spread(partial(unprepared, OSError), range(5), 2))
    assert multiprocessing.active_children() == []


def doubled(module: nn.Module, rows: dict[str, Tensor]) -> dict[str, Tensor]:
    assert all(isinstance(one, nn.Parameter) for one in module.parameters())
    return {name: module(value.float()) for name, value in rows.items()}


@pytest.mark.parametrize("pool", [Workers, InProcess])
def test_tensors_and_modules_cross_as_they_are(pool: type) -> None:
    torch.manual_seed(0)
    module, rows = nn.Linear(3, 2), {"a": torch.randn(5, 3).half(), "b": torch.zeros(0, 3)}
    workers = pool(partial(partial, doubled, module), *([1] if pool is Workers else []))
    with workers, torch.no_grad():
        [found] = workers.map([rows])
    for name, value in rows.items():
        assert torch.equal(found[name], module(value.float()))
