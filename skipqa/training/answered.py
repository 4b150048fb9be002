"""Questions that all went the full path, scored: the fast path and the confidence are fitted on it.

Enters: questions with their photos, worker processes with a pipeline each. Leaves: of every
question the drafter's confidence, the scores of its draft and of the full answer, and what the
reader measured. Files of a few questions each, so that a killed run resumes.
"""

from __future__ import annotations

import io
import json
import math
import random
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from skipqa.data.held_out import Split
from skipqa.files import write_text
from skipqa.pipeline import Pipeline
from skipqa.state import State
from skipqa.tasks.example import Example
from skipqa.tasks.okvqa import normalise
from skipqa.trace import Trace
from skipqa.training.pipelines import PipelineWorkers, run_jobs
from skipqa.training.run import Run
from skipqa.training.stage1.mixture import Mixture

QUESTIONS_PER_JOB = 16
Asked = tuple[tuple[Path, str], Example]  # where its photo lies, and the question


@dataclass(frozen=True, slots=True)
class Answered:
    """Of N questions."""

    confidence: Tensor  # the drafter's
    drafted: Tensor  # the score of the draft
    full: Tensor  # the score of the full path's answer
    log_prob: Tensor  # of that answer; NaN where the reader did not measure it
    grounded: Tensor  # 1 where a passage made it likelier

    def select(self, rows: Sequence[int]) -> Answered:
        return Answered(*(column[list(rows)] for column in self._columns()))

    def rows(self) -> Iterator[tuple[float, ...]]:
        """The fields in their order, question by question."""
        return zip(*(column.tolist() for column in self._columns()), strict=True)

    def _columns(self) -> tuple[Tensor, ...]:
        return self.confidence, self.drafted, self.full, self.log_prob, self.grounded

    def __len__(self) -> int:
        return len(self.full)


def sample(mixed: Mixture, split: Split, counts: Mapping[str, int], seed: int) -> list[Asked]:
    """So many questions of each source, in the order of `counts`."""
    photos = {row: where for where, row in mixed.photos.items()}
    asked: list[Asked] = []
    for source, count in counts.items():
        rows = mixed.select(source, split)
        random.Random(seed).shuffle(rows)
        examples = (mixed.examples[row] for row in rows[:count])
        asked += [(photos[example.photo], example) for example in examples]
    return asked


def answer_all(asked: Sequence[Asked], workers: PipelineWorkers, run: Run, part: str) -> Answered:
    """All questions down the full path; what a killed run has answered is read back."""
    folder = run.states(part)
    jobs = [
        (asked[at : at + QUESTIONS_PER_JOB], folder / f"{at:05d}.json")
        for at in range(0, len(asked), QUESTIONS_PER_JOB)
    ]
    todo = [job for job in jobs if not job[1].exists()]
    counted, before = run.counted("answering in full"), len(jobs) - len(todo)
    run_jobs(workers, _write_answers, todo, lambda done, _: counted(before + done, len(jobs)))
    rows = [row for _, path in jobs for row in json.loads(path.read_text())]
    return Answered(*torch.tensor(rows).T)


def by_source(asked: Sequence[Asked]) -> dict[str, list[int]]:
    """Rows of each source, and of all."""
    groups: dict[str, list[int]] = {"all": list(range(len(asked)))}
    for row, (_, example) in enumerate(asked):
        groups.setdefault(example.source, []).append(row)
    return groups


def _write_answers(pipeline: Pipeline, asked: Sequence[Asked], path: Path) -> None:
    """Whole or not at all."""
    write_text(path, json.dumps([_answer(pipeline, *one) for one in asked]))


def _answer(pipeline: Pipeline, photo: tuple[Path, str], example: Example) -> tuple[float, ...]:
    """The fields of `Answered`, in their order."""
    archive, name = photo
    with zipfile.ZipFile(archive) as photos:
        image = io.BytesIO(photos.read(name))
    # As answering would go on if this draft was not accepted
    trace = Trace()
    entering = State(image, example.question, fast_path=True)
    drafted = pipeline.run(entering, stop="draft", trace=trace)
    answer = pipeline.looked_up(pipeline.run(drafted, start="budget", trace=trace), trace)
    draft, log_prob = drafted.draft, answer.state.answer.log_prob
    return (
        draft.confidence,
        _score(example.answers, draft.answer),
        _score(example.answers, answer.text),
        math.nan if log_prob is None else log_prob,
        float(bool(answer.grounded)),
    )


def _score(answers: Mapping[str, float], text: str) -> float:
    return answers.get(normalise(text), 0.0)
