"""Worker processes: work is handed out a piece at a time, each process prepared once.

Enters: how a process prepares itself, the pieces. Leaves: the results, in the order of the pieces
(`map`) or as they are done (`as_done`). `Workers` keeps its processes until it is closed,
`InProcess` does the same work in this process, `spread` is one pass over processes of its own. It
knows nothing of questions.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, TypeVar

from skipqa.errors import UserError

Piece = TypeVar("Piece")
Result = TypeVar("Result")
Prepare = Callable[[], Callable[[Piece], Result]]


class InProcess(Generic[Piece, Result]):
    """The same work in this process, prepared at the first piece."""

    def __init__(self, prepare: Prepare[Piece, Result]) -> None:
        self._prepare = prepare
        self._work: Callable[[Piece], Result] | None = None

    def __enter__(self) -> InProcess[Piece, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        self._work = None

    def as_done(self, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, Result]]:
        for piece in pieces:
            if self._work is None:
                self._work = self._prepare()
            yield piece, self._work(piece)

    def map(self, pieces: Iterable[Piece]) -> Iterator[Result]:
        return (result for _, result in self.as_done(pieces))


class Workers(Generic[Piece, Result]):
    """Up to `jobs` processes, started when there is work for them and kept until the block ends.

    A process has one piece at a time, so a kill undoes at most one piece of each. They end with
    this process however it ends: nobody holds the other end of their pipes then. They are spawned,
    not forked: a fork would inherit the locks of torch's threads.
    """

    def __init__(self, prepare: Prepare[Piece, Result], jobs: int) -> None:
        self._prepare, self._jobs = prepare, jobs
        self._idle: list[_Worker] = []

    def __enter__(self) -> Workers[Piece, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        while self._idle:
            self._idle.pop().end()

    def as_done(self, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, Result]]:
        with closing(self._numbered(pieces)) as found:
            for _, piece, result in found:
                yield piece, result

    def map(self, pieces: Iterable[Piece]) -> Iterator[Result]:
        """In the order of the pieces; what is done early waits."""
        early: dict[int, Result] = {}
        following = 0
        with closing(self._numbered(pieces)) as found:
            for number, _, result in found:
                early[number] = result
                while following in early:
                    yield early.pop(following)
                    following += 1

    def _numbered(self, pieces: Iterable[Piece]) -> Generator[tuple[int, Piece, Result]]:
        left = enumerate(pieces)
        busy: dict[Connection, tuple[_Worker, int, Piece]] = {}

        def hand_out() -> None:
            while len(busy) < self._jobs and (following := next(left, None)) is not None:
                worker = self._idle.pop() if self._idle else _Worker.start(self._prepare)
                busy[worker.connection] = (worker, *following)
                worker.send(following[1])

        try:
            hand_out()
            while busy:
                for ready in wait(list(busy)):
                    assert isinstance(ready, Connection)
                    worker, number, piece = busy[ready]
                    result = worker.receive()
                    del busy[ready]
                    self._idle.append(worker)
                    hand_out()
                    yield number, piece, result
        finally:
            for worker, *_ in busy.values():  # given up in the middle: nobody waits for these
                worker.end()


def spread(
    prepare: Prepare[Piece, Result], pieces: Iterable[Piece], jobs: int
) -> Iterator[tuple[Piece, Result]]:
    """`prepare()(piece)` of every piece as it is done, in processes that end with the iterator."""
    with Workers(prepare, jobs) as workers:
        yield from workers.as_done(pieces)


@dataclass(frozen=True, slots=True)
class _Failure:
    """What went wrong in a process, as it is raised here."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _Worker:
    process: BaseProcess
    connection: Connection

    @staticmethod
    def start(prepare: Prepare[Any, Any]) -> _Worker:
        context = get_context("spawn")
        own_end, its_end = context.Pipe()
        process = context.Process(target=_work, args=(prepare, its_end), daemon=True)
        with _ignoring_interrupts():
            process.start()
        its_end.close()
        return _Worker(process, own_end)

    def send(self, piece: object) -> None:
        with suppress(ConnectionError):  # a process that died is told of when its result is due
            self.connection.send_bytes(_Pickler.dumps(piece))

    def receive(self) -> Any:
        try:
            found = self.connection.recv()
        except (EOFError, ConnectionError):
            raise UserError(
                "a process ended in the middle of its work, perhaps for want of memory: run the "
                "same command with fewer jobs, it goes on where it stopped"
            ) from None
        if isinstance(found, _Failure):
            raise found.error
        return found

    def end(self) -> None:
        self.process.terminate()
        self.process.join()
        self.connection.close()


def _work(prepare: Prepare[Any, Any], connection: Connection) -> None:
    """A process that cannot prepare itself answers every piece with that failure."""
    work = _attempt(prepare)
    with suppress(EOFError, ConnectionError):  # who handed out the work is gone
        while True:
            piece = connection.recv()
            result = work if isinstance(work, _Failure) else _attempt(work, piece)
            connection.send_bytes(_Pickler.dumps(result))


def _attempt(function: Callable[..., Any], *given: object) -> Any:
    try:
        return function(*given)
    except UserError as error:
        return _Failure(error)
    except Exception:
        return _Failure(RuntimeError(f"in a worker process:\n{traceback.format_exc()}"))


class _Pickler(ForkingPickler):
    """As a pipe sends values, but tensors as arrays: torch would share memory, a file for each."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")  # where nobody imported it there is no tensor
        if torch is not None and type(value) is torch.Tensor:
            return torch.from_numpy, (value.detach().cpu().numpy(),)
        return NotImplemented


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """A process started in here leaves Ctrl-C, which reaches all, to the one that ends it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
