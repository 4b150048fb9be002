"""Systems over the examples of a task: a record per question, and what the records come to.

Enters: examples, their photos and the task that scores them, and anything with
`answer(image, question)`. Leaves, in one folder per system: `run.json` (what is being run),
`predictions.jsonl` (written question by question, so a killed run goes on where it stopped) and
`summary.json`. It knows nothing of how a system answers or how an answer is scored.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from skipqa.answer import Answer
from skipqa.costs import memory
from skipqa.costs.environment import describe
from skipqa.errors import UserError
from skipqa.evaluation.records import (
    MEASURED_ALONE,
    Record,
    claim_folder,
    make_record,
    prediction_of,
    read_back,
)
from skipqa.evaluation.summary import summarise
from skipqa.files import append_jsonl, write_json
from skipqa.parallel import spread
from skipqa.tasks.example import Example
from skipqa.tasks.photos import Photos
from skipqa.tasks.task import Scorer

Progress = Callable[[int, int], None]  # (done, of how many)
T = TypeVar("T")


class System(Protocol):
    def answer(self, image: Path | IO[bytes], question: str) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Entrant:
    """A system, the folder of its results, and all that an answer of it depends on."""

    system: System
    folder: Path
    run: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EvalSet:
    """What every system is asked, and how the answers are scored."""

    examples: Sequence[Example]
    photos: Photos
    scorer: Scorer
    bad: Sequence[str] = ()  # one line about each question that cannot be asked


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes that answer in place of this one."""

    jobs: int
    build: Callable[[], Sequence[System]]  # in each of them: the entrants' systems, in their order


Turn = tuple[int, Example]  # the place of an entrant, and what it is asked
Outcome = Record | str  # or why there is none


def draw(examples: Sequence[Example], limit: int | None, seed: int) -> list[Example]:
    """`limit` examples in the file's order; a smaller draw with the same seed is part of it."""
    if limit is None or limit >= len(examples):
        return list(examples)
    if limit < 1:
        raise UserError(f"a limit of {limit} leaves no question")
    order = list(range(len(examples)))
    random.Random(seed).shuffle(order)
    return [examples[i] for i in sorted(order[:limit])]


def evaluate(
    entrants: Sequence[Entrant],
    asked: EvalSet,
    progress: Progress = lambda done, total: None,
    workers: Workers | None = None,
) -> list[dict[str, Any]]:
    """Ask what has no answer yet, then write and return a summary for each system.

    A question is put to every system before the next one, and they take turns in going first: a
    machine that is slow for a while is slow for all. They share the process, though: what one
    leaves with the allocator is in the next one's peak memory, so that is best measured alone. A
    folder with another run's answers is refused.
    """
    sheets = [_Sheet(entrant, list(asked.bad)) for entrant in entrants]
    turns = [
        (place, example)
        for number, example in enumerate(asked.examples)
        for place in in_turn(range(len(sheets)), number)
        if example.id not in sheets[place].answered
    ]
    before, total = len(asked.examples) * len(sheets) - len(turns), len(asked.examples)
    progress(before // len(sheets), total)
    with closing(_answers(entrants, turns, asked, workers)) as answers:
        for done, ((place, example), outcome) in enumerate(answers, before + 1):
            sheets[place].take(example, outcome)
            progress(done // len(sheets), total)
    jobs = 1 if workers is None else workers.jobs
    return [sheet.close(asked, jobs) for sheet in sheets]


def in_turn(systems: Sequence[T], number: int) -> list[T]:
    """All of them, another one first for each question."""
    first = number % len(systems)
    return [*systems[first:], *systems[:first]]


def _answers(
    entrants: Sequence[Entrant], turns: Sequence[Turn], asked: EvalSet, workers: Workers | None
) -> Generator[tuple[Turn, Outcome]]:
    if workers is not None:
        prepare = partial(_prepare, workers.build, asked.photos, asked.scorer)
        yield from spread(prepare, turns, workers.jobs)
        return
    ask = partial(_ask, [entrant.system for entrant in entrants], asked.photos, asked.scorer)
    for turn in turns:
        yield turn, ask(turn)


def _prepare(
    build: Callable[[], Sequence[System]], photos: Photos, scorer: Scorer
) -> Callable[[Turn], Outcome]:
    """In a process of several."""
    ask = partial(_ask, build(), photos, scorer)

    def ask_next_to_others(turn: Turn) -> Outcome:
        found = ask(turn)
        if isinstance(found, str):
            return found
        return {name: value for name, value in found.items() if name not in MEASURED_ALONE}

    return ask_next_to_others


def _ask(systems: Sequence[System], photos: Photos, scorer: Scorer, turn: Turn) -> Outcome:
    place, example = turn
    memory.forget_peak()
    try:
        answer = systems[place].answer(photos.open(example.image), example.question)
        return make_record(example, answer, scorer)
    except UserError as error:  # a damaged photo, a question over the limit, an unreadable number
        return f"{example.place}: {example.image}: {error}"


class _Sheet:
    """The answers of one system, in its folder."""

    def __init__(self, entrant: Entrant, bad: list[str]) -> None:
        claim_folder(entrant.folder, entrant.run)
        self.entrant, self.bad = entrant, bad
        self.path = entrant.folder / "predictions.jsonl"
        self.answered = read_back(self.path)

    def take(self, example: Example, outcome: Outcome) -> None:
        if isinstance(outcome, str):
            self.bad.append(outcome)
            return
        self.answered[example.id] = outcome
        append_jsonl(self.path, outcome)

    def close(self, asked: EvalSet, jobs: int) -> dict[str, Any]:
        examples = [example for example in asked.examples if example.id in self.answered]
        if not examples:
            raise UserError(f"no question could be answered; {self.bad[0]}")
        found = [self.answered[example.id] for example in examples]
        predictions = {r["question_id"]: prediction_of(r) for r in found}
        report = asked.scorer.report(examples, predictions)
        official = {} if report is None else {"official": report.as_dict()}
        about = {**describe(), "jobs": jobs, **self.entrant.run}
        summary = {**about, **summarise(found), **official, "bad_rows": self.bad}
        write_json(self.entrant.folder / "summary.json", summary, indent=1)
        return summary
