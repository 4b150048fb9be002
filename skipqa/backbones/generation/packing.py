"""Several decodings at once: their passes meet and go through the decoder together.

Enters: a backbone with a Llama, and tasks that decode with it, each as if it were alone. Leaves:
their results. Every task runs in a thread of its own; where it needs a pass it waits until all
others need one or are done, and one of them runs the pass for all. So any way of decoding is
batched, free, quoted or with candidates, without knowing of it. The weights are read once per pass
instead of once per task and pass.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from skipqa.backbones.generation.mixin import GenerationMixin
from skipqa.backbones.networks.llama import KVCache, Llama, Pass, Placement

Result = TypeVar("Result")
Backbone = TypeVar("Backbone", bound=GenerationMixin)


def decode_together(
    backbone: Backbone, tasks: Sequence[Callable[[Backbone], Result]]
) -> list[Result]:
    """The result of each task, which is called with a backbone of the same answers. The first
    error of a task is raised when all have ended."""
    meeting = _Meeting(backbone.decoder, len(tasks))
    packed = copy.copy(backbone)
    vars(packed)["decoder"] = _PackedLlama(backbone.decoder, meeting)

    def run(task: Callable[[Backbone], Result]) -> Result:
        try:
            return task(packed)
        finally:
            meeting.leave()

    with ThreadPoolExecutor(len(tasks)) as threads:
        return list(threads.map(run, tasks))


class _PackedLlama(Llama):
    """The same weights; passes and logits go through the meeting."""

    meeting: _Meeting

    def __init__(self, decoder: Llama, meeting: _Meeting) -> None:
        vars(self).update(vars(decoder))
        vars(self)["meeting"] = meeting

    def forward_at(self, x_BTD: Tensor, cache: KVCache, placed: Placement) -> Tensor:
        return self.meeting.wait(Pass(x_BTD, cache, placed))

    def logits(self, hidden: Tensor) -> Tensor:
        return self.meeting.wait(hidden)


class _Meeting:
    """Where tasks wait for each other; `num_tasks` take part."""

    def __init__(self, decoder: Llama, num_tasks: int) -> None:
        self.decoder, self._active = decoder, num_tasks
        self._changed = threading.Condition()
        self._asked: dict[int, Pass | Tensor] = {}  # by thread
        self._results: dict[int, Any] = {}

    def wait(self, asked: Pass | Tensor) -> Tensor:
        me = threading.get_ident()
        with self._changed:
            self._asked[me] = asked
            self._run_if_complete()
            self._changed.wait_for(lambda: me in self._results)
            result = self._results.pop(me)
        if isinstance(result, BaseException):
            raise result
        return result

    def leave(self) -> None:
        with self._changed:
            self._active -= 1
            self._run_if_complete()

    def _run_if_complete(self) -> None:
        """All that still decode are waiting: run what they wait for."""
        if not self._asked or len(self._asked) < self._active:
            return
        asked, self._asked = self._asked, {}
        try:
            self._results.update(self._run(asked))
        except Exception as error:  # each of them hears of it
            self._results.update(dict.fromkeys(asked, error))
        self._changed.notify_all()

    @torch.inference_mode()
    def _run(self, asked: dict[int, Pass | Tensor]) -> dict[int, Tensor]:
        passes = {who: what for who, what in asked.items() if isinstance(what, Pass)}
        hidden = {who: what for who, what in asked.items() if isinstance(what, Tensor)}
        found: dict[int, Tensor] = {}
        if passes:
            results = self.decoder.forward_packed(list(passes.values()))
            found |= zip(passes, results, strict=True)
        if hidden:
            rows = [states.flatten(0, -2) for states in hidden.values()]
            logits = self.decoder.logits(torch.cat(rows)).split([len(part) for part in rows])
            shapes = [states.shape[:-1] for states in hidden.values()]
            for who, part, shape in zip(hidden, logits, shapes, strict=True):
                found[who] = part.unflatten(0, shape)
        return found
