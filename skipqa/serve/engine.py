"""Questions to worker processes, and their answers back.

Enters: a question with a photo's bytes. Leaves: what the worker made of it, or one of the failures
below. A question goes to the worker with the fewest; as many as `max_questions` are taken on, more
are refused. A question whose caller leaves or whose time is up is cancelled in its worker. If a
worker dies, another takes its place and its questions are asked once more. Nothing here opens a
photo or knows of HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from skipqa.serve import frames
from skipqa.serve.frames import Frame
from skipqa.serve.options import Options

log = logging.getLogger("skipqa.serve")
MAX_ATTEMPTS = 2  # a question that has taken two workers down is not given a third
RESTART_S, MAX_RESTART_S = 0.5, 30.0  # pause before a worker that keeps dying is started again
USUAL_S = 0.6  # a question, until some have been measured
SMOOTHING = 0.1  # of the mean time of a question


class Busy(Exception):
    """More questions than the server takes on; try again after `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"try again in {seconds} s")
        self.seconds = seconds


class Loading(Exception):
    """No worker is ready yet, or the server is stopping."""


class TimedOut(Exception):
    """The question took longer than it may."""


class Lost(Exception):
    """The workers that had the question died."""


class Failed(Exception):
    """An error in a worker, logged there."""


class Refused(Exception):
    """The question or the photo cannot be answered; the message says why, `param` which of them."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class EngineSettings:
    load: dict[str, Any] = field(default_factory=dict)  # arguments of `pipeline.load`
    workers: int = 2
    threads: int = 1  # of each worker
    batch: int = 4  # questions that a worker decodes together
    max_questions: int = 64
    timeout_s: float = 120.0


@dataclass(slots=True)
class Job:
    id: str
    question: str
    options: Options
    photo: bytes
    answered: asyncio.Future[dict[str, Any]]
    attempts: int = 0
    worker: WorkerProcess | None = None

    def frame(self) -> Frame:
        options = asdict(self.options)
        header = {"op": "ask", "id": self.id, "question": self.question, "options": options}
        return Frame(header, self.photo)


class WorkerProcess:
    """One worker and the questions it has."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.jobs: dict[str, Job] = {}
        self.ready = False
        self.waiting = 0  # of its questions, behind one that is looked up
        self._process: Process | None = None
        self._writing = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def run(self, received: Callable[[WorkerProcess, dict[str, Any]], None]) -> None:
        """Start it and hand on what it says until it ends."""
        settings = self.settings
        environment = {**os.environ, "OMP_NUM_THREADS": str(settings.threads)}
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        # A session of its own: Ctrl-C is for the server, which first finishes what it took on.
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "skipqa.serve.worker"),
            stdin=PIPE,
            stdout=PIPE,
            env=environment,
            start_new_session=True,
        )
        try:
            first = {"load": settings.load, "threads": settings.threads, "batch": settings.batch}
            await self.send(Frame(first))
            assert process.stdout is not None
            with suppress(EOFError, ConnectionError):
                while True:
                    received(self, (await frames.receive(process.stdout)).header)
        finally:
            self.ready = False
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def send(self, frame: Frame) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # Its end is seen where it is read; uvloop says RuntimeError of a pipe that is closed.
        with suppress(ConnectionError, RuntimeError):
            async with self._writing:
                self._process.stdin.write(frames.packed(frame))
                await self._process.stdin.drain()


class Engine:
    """`unable` is called with the reason if the first worker cannot load what it is told to."""

    def __init__(
        self, settings: EngineSettings, unable: Callable[[str], None] = lambda _: None
    ) -> None:
        self.settings, self.unable = settings, unable
        self.workers: list[WorkerProcess] = []
        self.mean_s = USUAL_S
        self.restarts = 0
        self._numbers = itertools.count()
        self._jobs: dict[str, Job] = {}
        self._unassigned: deque[Job] = deque()
        self._sending: set[asyncio.Task[None]] = set()
        self._keeping: list[asyncio.Task[None]] = []
        self._one_was_ready = asyncio.Event()
        self._stopping = False

    @property
    def ready(self) -> bool:
        return not self._stopping and any(worker.ready for worker in self.workers)

    @property
    def num_questions(self) -> int:
        return len(self._jobs)

    @property
    def num_waiting(self) -> int:
        return len(self._unassigned) + sum(
            min(worker.waiting, len(worker.jobs)) for worker in self.workers
        )

    def start(self) -> None:
        """The others wait for the first, which makes the files that all of them read."""
        self.workers = [WorkerProcess(self.settings) for _ in range(self.settings.workers)]
        self._keeping = [asyncio.create_task(self._keep(n)) for n in range(len(self.workers))]

    async def wait_until_ready(self) -> None:
        await self._one_was_ready.wait()

    async def stop(self) -> None:
        """The questions that were taken on are answered by now, or nobody waits for them."""
        self._stopping = True
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)

    async def ask(
        self, question: str, photo: bytes, options: Options, timeout_s: float | None = None
    ) -> dict[str, Any]:
        if not self.ready:
            raise Loading
        if self.num_questions >= self.settings.max_questions:
            raise Busy(self.retry_after())
        future = asyncio.get_running_loop().create_future()
        job = Job(f"q{next(self._numbers)}", question, options, photo, future)
        self._jobs[job.id] = job
        try:
            self._assign(job)
            async with asyncio.timeout(timeout_s or self.settings.timeout_s):
                return await future
        except TimeoutError:
            raise TimedOut from None
        finally:
            self._forget(job)

    def retry_after(self) -> int:
        """Seconds until about half of what is taken on is answered."""
        return max(1, round(self.num_questions * self.mean_s / self.settings.workers / 2))

    def _assign(self, job: Job) -> None:
        ready = [worker for worker in self.workers if worker.ready]
        if not ready:
            self._unassigned.append(job)
            return
        job.worker = worker = min(ready, key=lambda worker: len(worker.jobs))
        worker.jobs[job.id] = job
        job.attempts += 1
        self._send(worker, job.frame())

    def _send(self, worker: WorkerProcess, frame: Frame) -> None:
        task = asyncio.create_task(worker.send(frame))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def _forget(self, job: Job) -> None:
        """It is answered, or its caller no longer waits."""
        self._jobs.pop(job.id, None)
        if job in self._unassigned:
            self._unassigned.remove(job)
        worker = job.worker
        if worker is not None and worker.jobs.pop(job.id, None) is not None and worker.ready:
            self._send(worker, Frame({"op": "cancel", "id": job.id}))

    def _received(self, worker: WorkerProcess, header: dict[str, Any]) -> None:
        worker.waiting = header.get("waiting", 0)
        if header["op"] == "ready":
            worker.ready = True
            self._one_was_ready.set()
            while self._unassigned:
                self._assign(self._unassigned.popleft())
            return
        if header["op"] == "unable":
            log.error("a worker cannot load its models: %s", header["message"])
            if not self._one_was_ready.is_set():
                self.unable(header["message"])
            return
        job = worker.jobs.pop(header["id"], None)
        if job is None or job.answered.done():
            return  # cancelled meanwhile
        if header["op"] == "answer":
            taken = header["outline"]["latency_ms"] / 1e3
            self.mean_s += SMOOTHING * (taken - self.mean_s)
            job.answered.set_result(header)
        elif header["kind"] == "user":
            job.answered.set_exception(Refused(header["message"], header["param"]))
        else:
            job.answered.set_exception(Failed())

    async def _keep(self, number: int) -> None:
        """A worker in this place, whatever happens to it."""
        pause = RESTART_S
        if number:
            await self._one_was_ready.wait()
        while True:
            worker = self.workers[number]
            started = time.monotonic()
            try:
                await worker.run(self._received)
            except Exception:
                log.exception("a worker could not be started, or did not speak in frames")
            pause = RESTART_S if time.monotonic() - started > MAX_RESTART_S else pause * 2
            self.restarts += 1
            self.workers[number] = WorkerProcess(self.settings)
            log.error("a worker process ended; another is started")
            self._give_back(worker)
            await asyncio.sleep(min(pause, MAX_RESTART_S))

    def _give_back(self, worker: WorkerProcess) -> None:
        """The questions of a worker that died are asked again, unless they were before."""
        for job in list(worker.jobs.values()):
            worker.jobs.pop(job.id)
            if job.answered.done():
                continue
            if job.attempts >= MAX_ATTEMPTS:
                job.answered.set_exception(Lost())
            else:
                job.worker = None
                self._assign(job)
