"""What each stage kept, dropped, spent, and why: counts and costs, written as the pipeline runs.

A stage is recorded by `with trace.stage("prune") as record:`. What it found is in the `State`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class StageRecord:
    name: str
    ms: float = 0.0
    flops: int = 0
    kept: int | None = None  # of the tokens, passages or edges that entered the stage
    dropped: int | None = None
    why: str = ""


class Stopped(Exception):
    """Raised in place of a stage whose result nobody needs any more."""


@dataclass(slots=True)
class Trace:
    stages: list[StageRecord] = field(default_factory=list)
    stopped: bool = False

    def stop(self) -> None:
        """A run that writes here ends before its next stage."""
        self.stopped = True

    @contextmanager
    def stage(self, name: str) -> Iterator[StageRecord]:
        if self.stopped:
            raise Stopped
        record = StageRecord(name)
        self.stages.append(record)
        start = time.perf_counter()
        try:
            yield record
        finally:
            record.ms = (time.perf_counter() - start) * 1_000

    def __getitem__(self, name: str) -> StageRecord:
        for record in self.stages:
            if record.name == name:
                return record
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        return any(record.name == name for record in self.stages)

    @property
    def flops(self) -> int:
        return sum(record.flops for record in self.stages)

    @property
    def latency_ms(self) -> float:
        return sum(record.ms for record in self.stages)
