"""All sources, asked at once for what is not cached, for as long as a question may wait.

Enters: names, and a number of seconds. Leaves: what the cache has and what was told in time; which
names are late, and a line about each source that failed. A source is asked in a thread of its own,
and what it says after the deadline still enters the cache, for the next question. A source that
failed is left alone for a while: without a network, questions do not wait for it. It does not know
what the names are for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from skipqa.errors import UserError
from skipqa.knowledge.on_demand.cache import Cache
from skipqa.knowledge.on_demand.source import Answers, KnowledgeSource, SourceFailed, Told

REST_S = 30.0  # that a source is left alone after it failed
MOST_AT_ONCE = 4  # requests to one source that nobody waits for any more


@dataclass(slots=True)
class Asked:
    told: dict[str, list[Told]] = field(default_factory=dict)  # by name
    cached: int = 0  # answers, of sources and names, that were in the cache
    fetched: int = 0  # that a source gave in time
    late: list[str] = field(default_factory=list)  # names
    warnings: list[str] = field(default_factory=list)


class Sources:
    def __init__(self, sources: Sequence[KnowledgeSource] = (), cache: Cache | None = None) -> None:
        assert cache is not None or not sources
        self.cache = cache
        self._desks = [_Desk(source, cache) for source in sources if cache is not None]

    def __len__(self) -> int:
        return len(self._desks)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(desk.source.name for desk in self._desks)

    @property
    def identities(self) -> tuple[str, ...]:
        return tuple(desk.source.identity for desk in self._desks)

    def ask(self, names: Sequence[str], seconds: float) -> Asked:
        """At most so many seconds, all sources together."""
        end, found = time.monotonic() + seconds, Asked()
        waiting: list[tuple[str, Future[Answers]]] = []
        for desk in self._desks:
            known, asked, warning = desk.start(names)
            found.cached += len(known)
            for name, told in known.items():
                found.told.setdefault(name, []).extend(told)
            waiting += asked.items()
            if warning:
                found.warnings.append(warning)
        wait({future for _, future in waiting}, timeout=max(0.0, end - time.monotonic()))
        for name, future in waiting:
            if not future.done():
                found.late.append(name)
            elif (error := future.exception()) is None:
                found.fetched += 1
                found.told.setdefault(name, []).extend(future.result().get(name, ()))
            elif str(error) not in found.warnings:
                found.warnings.append(str(error))
        return found


class _Desk:
    """One source: what it is being asked for, and whether it may be asked."""

    def __init__(self, source: KnowledgeSource, cache: Cache) -> None:
        self.source, self.cache = source, cache
        self._lock = threading.Lock()
        self._open: dict[str, Future[Answers]] = {}  # by name
        self._rested = 0.0  # the moment from which it may be asked again

    def start(
        self, names: Sequence[str]
    ) -> tuple[dict[str, list[Told]], dict[str, Future[Answers]], str]:
        """What is cached, what is being asked for, and why some names are not."""
        known = self.cache.get(self.source.identity, names)
        with self._lock:
            asked = {name: self._open[name] for name in names if name in self._open}
            new = [name for name in names if name not in known and name not in asked]
            if not new:
                return known, asked, ""
            if time.monotonic() < self._rested:
                return known, asked, f"{self.source.name} failed a moment ago and was not asked"
            if len(set(map(id, self._open.values()))) >= MOST_AT_ONCE:
                return known, asked, f"{self.source.name} is busy and was not asked"
            future: Future[Answers] = Future()
            self._open |= dict.fromkeys(new, future)
        # A daemon: the program does not wait for it at its end.
        threading.Thread(target=self._ask, args=(new, future), daemon=True).start()
        return known, {**asked, **dict.fromkeys(new, future)}, ""

    def _ask(self, names: Sequence[str], future: Future[Answers]) -> None:
        try:
            told = self.source.ask(names)
            answers = {name: list(told.get(name, ())) for name in names}
            self.cache.put(self.source.identity, answers)
        except (SourceFailed, UserError) as error:
            self._failed(names, future, error)
        except Exception as error:  # a fault of ours must not cost anybody an answer
            said = f"{self.source.name} failed: {type(error).__name__}"
            self._failed(names, future, SourceFailed(said))
        else:
            self._forget(names)
            future.set_result(answers)

    def _failed(self, names: Sequence[str], future: Future[Answers], error: Exception) -> None:
        with self._lock:
            self._rested = time.monotonic() + REST_S
        self._forget(names)
        future.set_exception(error)

    def _forget(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._open.pop(name, None)
