"""Clients of a server in threads, each asking one question after another.

Enters: a running server and questions. Leaves: one record per question: how long it took, by which
route, what went wrong. A client that is told to come later does, after as long as it was told.
"""

from __future__ import annotations

import json
import random
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Self

from server_process import Reply, ServerProcess

ANSWERED, REFUSED, CUT = "answered", "connection refused", "connection cut"
LATER = (429, 503)


class Question(NamedTuple):
    text: str
    photo: bytes
    fields: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Asked:
    begun: float
    ended: float
    outcome: str  # as above, or a status
    route: str = ""
    refusals: tuple[int, ...] = ()  # statuses that were waited out
    first: bool = False  # of its client: all of them begin at the same moment

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


def pairs(questions: Path, images: Path, seed: int) -> Iterator[Question]:
    """Without end and never one twice: when all are used up, every question takes the photo of the
    next."""
    rows = [json.loads(line) for line in questions.read_text().splitlines()]
    random.Random(seed).shuffle(rows)
    with zipfile.ZipFile(images) as archive:
        photos = [archive.read(row["image"]) for row in rows]
    for shift in range(len(rows)):
        for n, row in enumerate(rows):
            yield Question(row["question"], photos[(n + shift) % len(rows)])


class Clients:
    """They ask from entry to exit, which waits for the answers to what was begun."""

    def __init__(self, server: ServerProcess, questions: Iterator[Question], count: int) -> None:
        self.server, self.questions = server, questions
        self.asked: list[Asked] = []
        self.in_flight = 0
        self._may_begin = threading.Event()
        self._may_begin.set()
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leaving.set()
        self.go_on()
        if kind is None:
            self.finish()

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def finish(self) -> None:
        """When there are no more questions, or they leave."""
        for thread in self._threads:
            thread.join()

    def hold(self) -> None:
        """Nothing more is begun until they may go on."""
        with self._lock:
            self._may_begin.clear()

    def go_on(self) -> None:
        self._may_begin.set()

    def _run(self) -> None:
        first = True
        while not self._leaving.is_set():
            self._may_begin.wait()
            with self._lock:
                if not self._may_begin.is_set():
                    continue
                question = next(self.questions, None)
                if question is None:
                    return
                self.in_flight += 1
            asked, first = replace(self._ask(question), first=first), False
            with self._lock:
                self.in_flight -= 1
                self.asked.append(asked)
            if asked.outcome == REFUSED:
                return

    def _ask(self, question: Question) -> Asked:
        begun, refusals = time.perf_counter(), []
        while True:
            route, reply = "", None
            try:
                reply = self._reply(question)
                outcome = str(reply.status)
            except ConnectionRefusedError:
                outcome = REFUSED
            except (OSError, HTTPException):
                outcome = CUT
            if reply is not None and reply.status == 200:
                outcome, route = ANSWERED, reply.json()["skip"]["route"]
            elif reply is not None and reply.status in LATER and not self._leaving.is_set():
                refusals.append(reply.status)
                self._leaving.wait(float(reply.headers.get("retry-after", 1)))
                continue
            return Asked(begun, time.perf_counter(), outcome, route, tuple(refusals))

    def _reply(self, question: Question) -> Reply:
        return self.server.ask(question.text, question.photo, **question.fields).reply()
