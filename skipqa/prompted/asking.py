"""The calls of one question, and what became of their replies; many questions at a time.

Enters: prompts with their purpose. Leaves: completions; the `Asking` remembers calls and fallbacks
for the answer. It does not know what the prompts say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from skipqa.prompted.answer import Call, Usage
from skipqa.prompted.endpoint import ChatRequest, Completion, Endpoint, Picture

Report = Callable[[str], None]
T = TypeVar("T")
R = TypeVar("R")


class Prompt(NamedTuple):
    text: str
    picture: Picture | None = None


@dataclass
class Asking:
    endpoint: Endpoint
    model: str
    report: Report = lambda _: None
    calls: list[Call] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    _begin: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    @property
    def usage(self) -> Usage:
        return sum((call.usage for call in self.calls), Usage())

    def ask(self, purpose: str, prompt: Prompt, max_tokens: int) -> Completion:
        return self.ask_all(purpose, [prompt], max_tokens)[0]

    def ask_all(self, purpose: str, prompts: Sequence[Prompt], max_tokens: int) -> list[Completion]:
        """At the same time, as far as the endpoint allows; calls are remembered in order, also
        where one of them fails."""
        self.report(purpose)
        requests = [ChatRequest(self.model, *prompt, max_tokens) for prompt in prompts]
        with ThreadPoolExecutor(len(requests), thread_name_prefix="prompted-call") as pool:
            asked = [pool.submit(self.endpoint.complete, request) for request in requests]
        for one in asked:
            if one.exception() is None:
                done = one.result()
                self.calls.append(
                    Call(purpose, done.usage, done.seconds, done.attempts, done.finish)
                )
        return [one.result() for one in asked]

    def fall_back(self, line: str) -> None:
        """Something could not be read; `line` says what, and what is used instead."""
        self.fallbacks.append(line)


def concurrently(
    items: Sequence[T], work: Callable[[T], R], concurrency: int
) -> Iterator[tuple[T, R]]:
    """What `work` makes of each item, as they finish. An error of one ends it for all."""
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="prompted")
    try:
        begun = {pool.submit(work, item): item for item in items}
        for one in as_completed(begun):
            yield begun[one], one.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
