"""Work that is handed out to processes, a piece at a time, and comes back as it is done.

Enters: how a process gets ready, the pieces. Leaves: each piece with its result, in whatever order.
It knows nothing of questions.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from skipqa.errors import UserError

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def spread(
    prepare: Callable[[], Callable[[Piece], Result]], pieces: Iterable[Piece], jobs: int
) -> Iterator[tuple[Piece, Result]]:
    """`prepare()(piece)` of every piece, in so many processes that each prepare once.

    A process has one piece at a time, so what a kill undoes is at most one each. They end with the
    iterator, and with this process however that ends: then nobody holds the other end of their
    pipes. They are new ones, not forks, which would inherit locks of torch's threads.
    """
    left = iter(pieces)
    busy: dict[Connection, Piece] = {}
    started: list[BaseProcess] = []
    context = get_context("spawn")
    try:
        for piece in islice(left, jobs):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(prepare, theirs), daemon=True)
            with _deaf_to_interrupts():
                process.start()
            started.append(process)
            theirs.close()
            ours.send(piece)
            busy[ours] = piece
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                piece, result = busy.pop(ready), _receive(ready)
                for following in islice(left, 1):
                    ready.send(following)
                    busy[ready] = following
                yield piece, result
    finally:
        for one in started:
            one.terminate()
            one.join()


def _receive(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, ConnectionError):
        raise UserError(
            "a process ended in the middle of its work, perhaps for want of memory: run the same "
            "command with fewer jobs, it goes on where it stopped"
        ) from None


def _work(prepare: Callable[[], Callable[[Piece], Result]], connection: Connection) -> None:
    work = prepare()
    with suppress(EOFError, ConnectionError):  # who handed out the work is gone
        while True:
            connection.send(work(connection.recv()))


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """A process started in here leaves Ctrl-C, which reaches all, to the one that ends it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
