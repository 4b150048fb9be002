"""A worker process: one pipeline, two lanes.

    python -m skipqa.serve.worker        # started by engine.py, never by hand

Enters: frames on standard input, first what to load, then questions and cancellations. Leaves:
frames on standard output: ready, then an answer or an error per question. Drafts are made in a lane
of their own, so that an easy question never waits behind one that is looked up; photos are opened
in that lane only, one at a time. The process ends with its input, so it never outlives the server.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import IO, Any

import torch
from PIL import Image

from skipqa.answer import Answer
from skipqa.errors import UserError
from skipqa.image import open_image
from skipqa.pipeline import Pipeline, load
from skipqa.serve import frames
from skipqa.serve.answering import Pipelines, check_length, reply
from skipqa.serve.frames import Frame
from skipqa.serve.options import Options
from skipqa.stages.together import Waiting, decode_batch
from skipqa.state import State
from skipqa.trace import Stopped, Trace

LOOKUP_NICENESS = 5  # a draft gets three quarters of a core that both lanes need
LARGE_PIXELS = 2_000_000  # a photo that waits is kept as its file if it has more


class BadPhoto(UserError):
    """It is no image, or one that is not opened."""


@dataclass(slots=True)
class Job:
    id: str
    question: str
    options: Options
    photo: bytes
    trace: Trace = field(default_factory=Trace)
    pipeline: Pipeline | None = None


class Worker:
    def __init__(self, pipelines: Pipelines, out: IO[bytes], batch: int) -> None:
        self.pipelines, self.batch = pipelines, batch
        self._out, self._writing = out, threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._new: SimpleQueue[Job] = SimpleQueue()
        self._drafted: deque[tuple[Job, State]] = deque()
        self._arrived = threading.Condition()

    def run(self, source: IO[bytes]) -> None:
        """Until the input ends."""
        for lane in (self._draft_lane, self._lookup_lane):
            threading.Thread(target=_or_end, args=(lane,), daemon=True).start()
        while True:
            try:
                header, body = frames.read(source)
            except EOFError:
                return
            if header["op"] == "cancel":
                if (job := self._jobs.get(header["id"])) is not None:
                    job.trace.stop()
            else:
                options = Options.read(header["options"])
                job = Job(header["id"], header["question"], options, body)
                self._jobs[job.id] = job
                self._new.put(job)

    def _draft_lane(self) -> None:
        while True:
            job = self._new.get()
            with self._apart(job):
                if (state := self._draft(job)) is not None:
                    with self._arrived:
                        self._drafted.append((job, state))
                        self._arrived.notify()

    def _lookup_lane(self) -> None:
        """As many as have come meanwhile are decoded together."""
        if sys.platform == "linux":  # where a thread has a priority, which those it starts inherit
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOOKUP_NICENESS)
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: bool(self._drafted))
                count = min(self.batch, len(self._drafted))
                taken = [self._drafted.popleft() for _ in range(count)]
            fused: list[tuple[Job, Waiting]] = []
            for job, state in taken:
                with self._apart(job):
                    fused.append((job, self._fuse(job, state)))
            decoded = decode_batch([waiting for _, waiting in fused])
            for (job, _), found in zip(fused, decoded, strict=True):
                with self._apart(job):
                    self._look_up(job, found)

    @contextmanager
    def _apart(self, job: Job) -> Iterator[None]:
        """Whatever happens to one question stays with it."""
        try:
            yield
        except Stopped:
            self._jobs.pop(job.id, None)  # cancelled: nobody waits for it
        except UserError as error:
            param = "photo" if isinstance(error, BadPhoto) else None
            self._finish(
                job, {"op": "error", "kind": "user", "message": str(error), "param": param}
            )
        except Exception:
            traceback.print_exc()
            self._finish(job, {"op": "error", "kind": "internal"})

    def _draft(self, job: Job) -> State | None:
        pipeline = self.pipelines.get(job.options, has_image=bool(job.photo))
        job.pipeline = pipeline
        check_length(job.question, pipeline)
        state = State(None, job.question, job.options.fast_path)
        if job.photo:
            image = opened(job.photo)
            state = state.add(source=image, image=image)
        state = pipeline.run(state, stop="draft", trace=job.trace)
        if state.fast_path and state.draft.accepted:
            self._answered(job, pipeline.route(state, job.trace))
            return None
        if not job.photo or state.image.width * state.image.height <= LARGE_PIXELS:
            return state
        return state.add(source=None, image=None) if self._drafted else state

    def _fuse(self, job: Job, state: State) -> Waiting:
        assert job.pipeline is not None
        if job.photo and "image" not in state:
            state = state.add(image=opened(job.photo))
        return job.pipeline.fused(state, job.trace)

    def _look_up(self, job: Job, decoded: State | Exception) -> None:
        assert job.pipeline is not None
        if isinstance(decoded, Exception):
            raise decoded
        self._answered(job, job.pipeline.looked_up(decoded, job.trace))

    def _answered(self, job: Job, answer: Answer) -> None:
        assert job.pipeline is not None
        self._finish(job, {"op": "answer", **reply(answer, job.options, job.pipeline)})

    def _finish(self, job: Job, header: dict[str, Any]) -> None:
        self._jobs.pop(job.id, None)
        self.send({**header, "id": job.id})

    def send(self, header: dict[str, Any]) -> None:
        with self._writing:
            self._out.write(frames.packed(Frame({**header, "waiting": len(self._drafted)})))
            self._out.flush()


def _or_end(lane: Callable[[], None]) -> None:
    """Without one of its lanes a worker would take on questions and answer none: it ends, so that
    another takes its place."""
    try:
        lane()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def opened(photo: bytes) -> Image.Image:
    try:
        return open_image(io.BytesIO(photo))
    except UserError as error:
        raise BadPhoto(str(error)) from None


def main() -> None:
    source, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no frame
    settings = frames.read(source).header
    torch.set_num_threads(settings["threads"])
    try:
        pipelines = Pipelines(load(**settings["load"]))
        warm_up(pipelines)
    except UserError as error:
        out.write(frames.packed(Frame({"op": "unable", "message": str(error)})))
        out.flush()
        return
    worker = Worker(pipelines, out, settings["batch"])
    worker.send({"op": "ready", "pid": os.getpid()})
    worker.run(source)
    os._exit(0)  # a lane may be in the middle of a question that nobody waits for


def warm_up(pipelines: Pipelines) -> None:
    """Load every network now, so that no question waits for it."""
    nothing = Image.new("RGB", (64, 64))
    pipeline = pipelines.get(Options(), has_image=True)
    pipeline.answer(nothing, "Where does this come from?", fast_path=False)


if __name__ == "__main__":
    main()
