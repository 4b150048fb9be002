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
from skipqa.files import is_text
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
        requests: list[tuple[str, _Request]] = []
        for desk in self._desks:
            known, asked, warning = desk.start(names, patience_s=seconds)
            found.cached += len(known)
            for name, told in known.items():
                found.told.setdefault(name, []).extend(told)
            requests += asked.items()
            if warning:
                found.warnings.append(warning)
        awaited = {request.future for _, request in requests if request.awaited}
        wait(awaited, timeout=max(0.0, end - time.monotonic()))
        for name, request in requests:
            if not request.future.done():
                found.late.append(name)
            elif (error := request.future.exception()) is None:
                found.fetched += 1
                found.told.setdefault(name, []).extend(request.future.result().get(name, ()))
            elif str(error) not in found.warnings:
                found.warnings.append(str(error))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    future: Future[Answers]
    started: float
    awaited: bool  # whether a question should wait for it


class _Desk:
    """One source: what it is being asked for, and whether it may be asked."""

    def __init__(self, source: KnowledgeSource, cache: Cache) -> None:
        self.source, self.cache = source, cache
        self._lock = threading.Lock()
        self._open: dict[str, _Request] = {}  # by name
        self._rested = 0.0  # the moment from which it may be asked again

    def start(
        self, names: Sequence[str], patience_s: float
    ) -> tuple[dict[str, list[Told]], dict[str, _Request], str]:
        """What is cached, what is being asked for, and why some names are not. While a request is
        open for longer than anybody waits, the source is asked, but not waited for."""
        known, now = self.cache.get(self.source.identity, names), time.monotonic()
        with self._lock:
            asked = {name: self._open[name] for name in names if name in self._open}
            new = [name for name in names if name not in known and name not in asked]
            if not new:
                return known, asked, ""
            if now < self._rested:
                return known, asked, f"{self.source.name} failed a moment ago and was not asked"
            requests = set(self._open.values())
            if len(requests) >= MOST_AT_ONCE:
                return known, asked, f"{self.source.name} is busy and was not asked"
            overdue = any(now - request.started > patience_s for request in requests)
            request = _Request(Future(), now, not overdue)
            self._open |= dict.fromkeys(new, request)
        # A daemon: the program does not wait for it at its end.
        threading.Thread(target=self._ask, args=(new, request.future), daemon=True).start()
        return known, {**asked, **dict.fromkeys(new, request)}, ""

    def _ask(self, names: Sequence[str], future: Future[Answers]) -> None:
        try:
            told = self.source.ask(names)
            answers = {name: list(filter(_is_text, told.get(name, ()))) for name in names}
        except (SourceFailed, UserError) as error:
            self._failed(names, future, error)
        except Exception as error:  # a fault of ours must not cost anybody an answer
            said = f"{self.source.name} failed: {type(error).__name__}"
            self._failed(names, future, SourceFailed(said))
        else:
            future.set_result(answers)  # who waits does not wait for the disk
            self.cache.put(self.source.identity, answers)
            self._forget(names)

    def _failed(self, names: Sequence[str], future: Future[Answers], error: Exception) -> None:
        with self._lock:
            self._rested = time.monotonic() + REST_S
        self._forget(names)
        future.set_exception(error)

    def _forget(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._open.pop(name, None)


def _is_text(told: Told) -> bool:
    passage, origin = told
    return all(map(is_text, (passage.id, passage.title, passage.text, origin.address)))
