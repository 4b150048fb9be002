"""Made-up questions, systems that are told what to say, and what a run of them left."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from skipqa.answer import Answer
from skipqa.evaluation.records import MEASURED_ALONE
from skipqa.state import State
from skipqa.tasks import Example
from skipqa.trace import Trace
from skipqa.types import Decoded

RUN = {"system": "test", "seed": 0}
LOOKED_UP = "Where does this come from?"


class Told:
    """A system that is handed its answers and looks at nothing."""

    def __init__(self, answers: Mapping[str, str], die_after: int | None = None) -> None:
        self.answers, self.left = answers, die_after

    def answer(self, image: Path | IO[bytes], question: str) -> Answer:
        if self.left is not None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
        state = State("nowhere.png", question).add(answer=Decoded(self.answers[question]))
        return Answer(state, "draft", Trace())


class Slow(Told):
    """As `Told`, in its own time."""

    def answer(self, image: Path | IO[bytes], question: str) -> Answer:
        time.sleep(0.02)
        return super().answer(image, question)


def made_up(count: int, choices: int = 10) -> list[Example]:
    """Questions whose answers are drawn from a few words."""
    words = [f"word{n}" for n in range(choices)]
    return [
        Example(
            id=n,
            image="a.png",
            question=f"question {n}",
            answers={words[n % choices]: 1.0},
            category="odd" if n % 2 else "even",
            line=n,
        )
        for n in range(count)
    ]


def gold(rows: list[Example]) -> dict[str, str]:
    return {row.question: max(row.answers, key=row.answers.__getitem__) for row in rows}


def write(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def question(number: int, **changes: Any) -> dict[str, Any]:
    row = {"question_id": number, "image": "a.png", "question": "Why?", "answer": "Yes"}
    return {**row, **changes}


def records_of(out: Path) -> list[dict[str, Any]]:
    lines = (out / "predictions.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k not in MEASURED_ALONE} for line in lines
    ]
