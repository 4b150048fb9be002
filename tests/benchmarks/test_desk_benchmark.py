"""What the benchmark of `desk` computes from answers, on systems that are made up."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skipqa.answer import Answer
from skipqa.backbones.networks.llama import LlamaConfig
from skipqa.errors import UserError
from skipqa.state import State
from skipqa.tasks.example import Example
from skipqa.trace import StageRecord, Trace
from skipqa.types import Decoded
from tools.documents import desk as documents

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DECODER = LlamaConfig(50, 32, 2, 4, 2, 48)
TOKEN_BYTES = 2 * 2 * 16 * 2  # keys and values, layers, width, bytes
PROMPT_TOKENS = {"skip": 10, "dense": 40, "no-retrieval": 10}
FLOPS = {"skip": 100, "dense": 600, "no-retrieval": 100}
EXAMPLES = [Example(n, "a.png", f"question {n}", {"tea": 1.0}) for n in range(5)]


@pytest.fixture(scope="module")
def desk() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return importlib.import_module("desk")


class Photos:
    def open(self, name: str) -> BytesIO:
        return BytesIO()


@dataclass
class System:
    """`skip` drafts its first question; only `dense` is right; nobody can read question 3."""

    name: str
    asked: list[tuple[str, str]]

    def answer(self, image: Any, question: str) -> Answer:
        if question.endswith("3"):
            raise UserError("damaged")
        self.asked.append((self.name, question))
        drafts = self.name == "skip" and question.endswith("0")
        text = "tea" if self.name == "dense" else "milk"
        read = 0 if drafts else PROMPT_TOKENS[self.name]
        state = State(image, question).add(answer=Decoded(text, prompt_tokens=read))
        trace = Trace([StageRecord("decode", 1.0, FLOPS[self.name])])
        return Answer(state, "draft" if drafts else "full", trace)

    def answer_batch(self, images: Any, questions: Sequence[str], together: int) -> list[Answer]:
        assert together == len(images) == len(questions)
        self.asked.append((self.name, "batch"))
        return [self.answer(*one) for one in zip(images, questions, strict=True)]


def asking(desk: ModuleType, deadline: float) -> tuple[Any, list[tuple[str, str]]]:
    asked: list[tuple[str, str]] = []
    made = {name: System(name, asked) for name in desk.SYSTEMS}
    return desk.Asking(made, DECODER, Photos(), 2, deadline), asked


def results_of(summary: Any) -> dict[str, Any]:
    """As in a results file."""
    header = {"machine": {"cpu": "x", "cores": 1}, "versions": {}, "python": "3", "commit": "c"}
    results = {"answered": 4, "weights": "bfloat16", "summary": summary}
    return {**header, "command": "desk.py", "date": "2026-11-19", "results": results}


def test_systems_take_turns_and_answer_whole_batches_again(desk: ModuleType) -> None:
    ask, asked = asking(desk, math.inf)
    measured, done = desk.Measured(), []
    ask(EXAMPLES, measured, done.append)
    assert [name for name, _ in asked[:6]] == [
        *("skip", "dense", "no-retrieval"),
        *("dense", "no-retrieval", "skip"),
    ]
    assert [name for name, what in asked if what == "batch"] == [
        *("skip", "dense", "no-retrieval"),
        *("dense", "no-retrieval", "skip"),
    ]
    assert measured.bad == ["question 3: a.png: damaged"]
    assert {len(replies) for replies in measured.replies.values()} == {4}
    assert set(measured.same.values()) == {4}
    assert done[-1] == len(EXAMPLES)


def test_all_systems_are_compared_on_the_same_questions(desk: ModuleType) -> None:
    ask, _ = asking(desk, math.inf)
    measured = desk.Measured()
    ask(EXAMPLES, measured)
    summary = desk.summarise(measured, batch=2)
    parts = summary["parts"]
    assert {part: found["questions"] for part, found in parts.items()} == {
        "all": 4, "drafted": 1, "full path": 3,
    }  # fmt: skip
    every, full = (parts[part]["systems"]["skip"] for part in ("all", "full path"))
    assert every["cache_bytes"] == {"mean": 7.5 * TOKEN_BYTES, "most": 10 * TOKEN_BYTES}
    assert every["cache_saved"]["mean"] == 1 - 7.5 / 40
    assert full["cache_saved"]["mean"] == 1 - 10 / 40
    assert every["times_fewer_flops"] == 6
    assert every["drafted"] == 0.25
    assert every["differences"]["dense"]["difference"] == -1
    assert every["differences"]["no-retrieval"]["difference"] == 0
    assert parts["all"]["systems"]["dense"]["times_faster"] == {"p50": 1, "p95": 1, "mean": 1}
    assert parts["all"]["systems"]["dense"]["accuracy"]["mean"] == 1
    assert summary["throughput"]["questions"] == 4
    desk.show(summary)
    block = documents.desk(results_of(summary))
    assert "4 questions, of which `skip` drafted 1 and looked up 0;" in block
    assert "| skip, full path |" not in block, "three questions are too few"
    parts["full path"]["questions"] = documents.FEWEST
    assert "| skip, full path |" in documents.desk(results_of(summary))


def test_latency_is_that_of_the_whole_answer(desk: ModuleType) -> None:
    def reply(ms: float) -> Any:
        return desk.Reply(0, "tea", 1.0, "full", 1, 0, 10, 100, 64, ms, {})

    slow, fast = [reply(ms) for ms in (20, 40, 60)], [reply(ms) for ms in (10, 10, 40)]
    found = desk.costs(fast, slow)
    assert found["latency_ms"]["p50"] == 10
    assert found["latency_ms"]["mean"] == 20
    assert found["times_faster"]["p50"] == 4
    assert found["times_faster"]["mean"] == 2


def test_nothing_is_asked_after_the_deadline(desk: ModuleType) -> None:
    ask, asked = asking(desk, time.monotonic() - 1)
    measured = desk.Measured()
    ask(EXAMPLES, measured)
    assert not asked
    assert measured.num_questions == 0


def test_without_a_whole_batch_there_is_no_throughput(desk: ModuleType) -> None:
    ask, _ = asking(desk, math.inf)
    measured = desk.Measured()
    ask(EXAMPLES[:1], measured)
    summary = desk.summarise(measured, batch=2)
    assert summary["throughput"] is None
    desk.show(summary)
    assert "| dense |" in documents.desk(results_of(summary))


def test_it_warms_up_with_other_questions(desk: ModuleType) -> None:
    asked, others = desk.drawn(EXAMPLES, 3, 2, seed=0)
    assert len(asked) == 3
    assert len(others) == 2
    assert not {one.id for one in asked} & {one.id for one in others}
    asked, others = desk.drawn(EXAMPLES, 9, 2, seed=0)
    assert len(asked) == 5
    assert len(others) == 2, "there are no others"
