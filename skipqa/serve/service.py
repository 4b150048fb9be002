"""What all routes share: which indexes a question names, asking it, and leaving with the client.

Enters: a checked request. Leaves: a `Served` answer. It puts engine, store and metrics together and
knows no route's own form.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any

from starlette.requests import ClientDisconnect, Request

from skipqa.knowledge.default import DEFAULT, built_default
from skipqa.knowledge.engines import parse_uri
from skipqa.knowledge.index.format import read_manifest
from skipqa.knowledge.library import named
from skipqa.serve.conversation import Asked, photo_of
from skipqa.serve.engine import Engine
from skipqa.serve.errors import ApiError
from skipqa.serve.fetch import FetchPolicy
from skipqa.serve.metrics import Metrics
from skipqa.serve.options import Options
from skipqa.serve.schemas import SkipOptions
from skipqa.serve.settings import ServeSettings
from skipqa.serve.store import IndexStore

MAX_FETCHES = 8  # images at a time, each in memory


@dataclass(frozen=True, slots=True)
class Served:
    outline: dict[str, Any]
    pieces: list[str]  # the text with its citations, as a stream sends it
    usage: dict[str, int]

    def until(self, max_tokens: int | None, stops: Sequence[str]) -> tuple[Served, str]:
        """The text up to what the client asked for, and why it ends there: stop or length."""
        text, pieces = "".join(self.pieces), self.pieces
        cuts = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
        if cuts:
            pieces = _cut(pieces, min(cuts))
        reason = "stop"
        if max_tokens is not None and len(pieces) > max_tokens:
            pieces, reason = pieces[:max_tokens], "length"
        return Served(
            self.outline, pieces, _usage(self.usage["prompt_tokens"], len(pieces))
        ), reason


class Service:
    def __init__(
        self,
        settings: ServeSettings,
        engine: Engine,
        store: IndexStore | None,
        metrics: Metrics,
    ) -> None:
        self.settings, self.engine, self.store, self.metrics = settings, engine, store, metrics
        self.created = int(time.time())
        self._fetching = asyncio.Semaphore(MAX_FETCHES)
        self.policy = FetchPolicy(max_bytes=settings.max_body) if settings.allow_urls else None
        self.configured = configured_indexes(settings)
        default = [DEFAULT] if DEFAULT in settings.indexes or not self.configured else []
        self.searched = [*default, *self.configured]  # where a request names none
        metrics.watch(
            {
                "num_requests_waiting": lambda: engine.num_waiting,
                "num_requests_running": lambda: engine.num_questions - engine.num_waiting,
                "num_workers": lambda: sum(worker.ready for worker in engine.workers),
            }
        )

    async def ask(
        self, request: Request, question: str, photo: bytes, options: Options, timeout: float | None
    ) -> Served:
        """The answer; if the client leaves before, the question is cancelled."""
        started = time.perf_counter()
        answering = asyncio.ensure_future(self.engine.ask(question, photo, options, timeout))
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ClientDisconnect
            found = answering.result()
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        outline, pieces = found["outline"], found["pieces"]
        usage = _usage(found["prompt_tokens"], len(pieces))
        self.metrics.answered(outline, time.perf_counter() - started, usage)
        return Served(outline, pieces, usage)

    async def ask_conversation(
        self,
        request: Request,
        conversation: Asked,
        model: str,
        index: str | Sequence[str] | None,
        skip: SkipOptions | None,
    ) -> Served:
        options = self.options(skip or SkipOptions(), self.indexes(model, index))
        photo = b""
        if conversation.image:
            async with self._fetching:
                photo = await photo_of(conversation.image, self.policy, "messages")
        timeout = None if skip is None else skip.timeout
        return await self.ask(request, conversation.question, photo, options, timeout)

    def options(self, skip: SkipOptions, indexes: tuple[str, ...]) -> Options:
        citations = self.settings.citations if skip.citations is None else skip.citations
        return Options(
            indexes=indexes,
            system=skip.system,
            fast_path=skip.fast_path,
            tokens=skip.tokens,
            passages=skip.passages,
            threshold=skip.threshold,
            citations=citations,
        )

    def indexes(self, model: str, index: str | Sequence[str] | None) -> tuple[str, ...]:
        """The folders of the indexes that a request names, after the model's name or by a field;
        none if it names none."""
        name, _, after = model.partition(":")
        if name != self.settings.model:
            raise ApiError(404, "model_not_found", f"the model is {self.settings.model}", "model")
        names = [one for one in ([index] if isinstance(index, str) else index or ()) if one]
        names = names or [one for one in after.split("+") if one]
        return tuple(dict.fromkeys(self._folder(name) for name in names))

    def _folder(self, name: str) -> str:
        if name == DEFAULT:
            return DEFAULT
        if name in self.configured:
            return self.configured[name]
        if self.store is None:
            raise ApiError(404, "index_not_found", "there is no such index", "index")
        return str(self.store.path(name))

    def num_passages(self, name: str) -> int:
        """Of an index that the server was started with."""
        if name == DEFAULT:
            return sum(map(_passages_in, built_default().values()))
        return _passages_in(Path(parse_uri(self.configured[name])[1]))

    def index_names(self) -> list[str]:
        """Of those that questions may name."""
        uploaded = [] if self.store is None else self.store.list()
        ready = [status.name for status in uploaded if status.passages and not status.built_in]
        return [DEFAULT, *self.configured, *ready]


def configured_indexes(settings: ServeSettings) -> dict[str, str]:
    """What the server was started with besides the default, by the names of the library."""
    given = [uri for uri in settings.indexes if uri != DEFAULT]
    return {name: str(uri) for name, uri in named(given).items()} if given else {}


@cache
def _passages_in(folder: Path) -> int:
    return int(read_manifest(folder)["corpus"]["passages"])


def identifier(kind: str) -> str:
    return f"{kind}-{token_hex(12)}"


def _usage(prompt: int, completion: int) -> dict[str, int]:
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def _cut(pieces: Sequence[str], length: int) -> list[str]:
    """The first `length` characters of the pieces."""
    cut = []
    for piece in pieces:
        if length <= 0:
            break
        cut.append(piece[:length])
        length -= len(piece)
    return cut


async def _left(request: Request) -> None:
    """Returns when the client is gone. The body has been read by now."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
