"""The threshold of the fast path, chosen through the whole pipeline on held-out questions.

Enters: components, OK-VQA's questions on held-out photos and, a quarter as many, perceptual ones
of COCO. Each goes the full path whatever the drafter says; then every threshold is known: how many
questions the drafter would answer alone, and what that loses. Leaves: the components with
`draft.threshold` in their `settings.toml`. Three questions in ten are drafted, or fewer where that
would lose more than a point. `benchmarks/fast_path.py` measures the same on validation questions,
on which nothing is chosen.
"""

from __future__ import annotations

import dataclasses
import io
import json
import random
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skipqa.components import SETTINGS, change_settings
from skipqa.config import Count, CountOrNone, Fraction
from skipqa.data.held_out import Split
from skipqa.evaluation.statistics import paired_bootstrap
from skipqa.nn.drafter import calibrate_threshold
from skipqa.pipeline import Pipeline, bundled_components
from skipqa.tasks.example import Example
from skipqa.tasks.okvqa import normalise
from skipqa.training.export import take_over
from skipqa.training.pipelines import PipelineWorkers, Source, open_workers, run_jobs
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, Metrics, TrainingStage
from skipqa.training.stage1 import mixture
from skipqa.training.stage1.mixture import Mixture

KNOWLEDGE, PERCEPTUAL = "okvqa", {"held-out": "coco", "val": "vqav2"}
PART = "fast_path"
QUESTIONS_PER_JOB = 16
Asked = tuple[tuple[Path, str], Example]  # where its photo lies, and the question


@dataclass(frozen=True, slots=True)
class FastPathSettings:
    questions: Count = 640  # of OK-VQA
    perceptual_ratio: Count = 4  # one perceptual question for so many of these
    drafted: Fraction = 0.3  # of the questions, at most
    max_loss: Fraction = 0.01  # of accuracy
    workers: CountOrNone = 0  # processes; 0: as many as there are cores


@dataclass(frozen=True, slots=True)
class DraftScores:
    """Of N questions: the drafter's confidence, and the scores of its and of the full answers."""

    confidence: Tensor
    drafted: Tensor
    full: Tensor

    def select(self, rows: Sequence[int]) -> DraftScores:
        return DraftScores(*(x[list(rows)] for x in (self.confidence, self.drafted, self.full)))

    def at(self, threshold: float) -> Metrics:
        """The fraction drafted at a threshold, and the accuracy next to the full path's."""
        fast = self.confidence > threshold
        answered = torch.where(fast, self.drafted, self.full)
        return {
            "threshold": threshold,
            "questions": len(self.full),
            "rate": float(fast.float().mean()),
            "full": float(self.full.mean()),
            "accuracy": float(answered.mean()),
            "gain": asdict(paired_bootstrap(answered.tolist(), self.full.tolist())),
        }

    def choose(self, settings: FastPathSettings) -> float:
        affordable = calibrate_threshold(
            self.confidence, self.drafted, self.full, settings.max_loss
        ).threshold
        return max(affordable, float(self.confidence.quantile(1 - settings.drafted)))


@dataclass(frozen=True, slots=True)
class FastPathStage(TrainingStage):
    settings: FastPathSettings

    def run(self, inputs: Inputs, settings: FastPathSettings, run: Run) -> Metrics:
        mixed = mixture.read(inputs.require_data(self.name), inputs.pocket_kb, inputs.limit)
        # The default index, as people ask with it: neither kind of question needs Pocket-KB's
        source = Source(components=inputs.components)
        run.claim(
            {
                "stage": self.name,
                "seed": run.seed,
                "limit": inputs.limit,
                "data": mixed.fingerprint(),
                **source.fingerprint(),
                "settings": dataclasses.asdict(settings),
            }
        )
        if PART not in run.metrics():
            take_over(source.components or _bundled(source.preset), run.folder)
            asked = sample(mixed, "held-out", settings, run.seed)
            with open_workers(source, settings.workers or None) as workers:
                scores = score_drafts(asked, workers, run)
            threshold = scores.choose(settings)
            chosen = {"threshold": threshold, "counting_threshold": threshold}
            change_settings(run.folder / SETTINGS, draft=chosen)
            run.finish(PART, {"chosen": summary(scores, asked, threshold)})
        run.forget_states()
        return run.metrics()


STAGE = FastPathStage("fast_path", FastPathSettings())


def _bundled(preset: str) -> Path:
    folder = bundled_components(preset)
    assert folder is not None
    return folder


def sample(mixed: Mixture, split: Split, settings: FastPathSettings, seed: int) -> list[Asked]:
    """OK-VQA's questions, then perceptual ones."""
    photos = {row: where for where, row in mixed.photos.items()}
    counts = {
        KNOWLEDGE: settings.questions,
        PERCEPTUAL[split]: settings.questions // settings.perceptual_ratio,
    }
    asked: list[Asked] = []
    for source, count in counts.items():
        rows = mixed.select(source, split)
        random.Random(seed).shuffle(rows)
        examples = (mixed.examples[row] for row in rows[:count])
        asked += [(photos[example.photo], example) for example in examples]
    return asked


def score_drafts(asked: Sequence[Asked], workers: PipelineWorkers, run: Run) -> DraftScores:
    """All questions down the full path; what a killed run has scored is read."""
    jobs = [
        (asked[at : at + QUESTIONS_PER_JOB], run.folder / "state" / f"{PART}-{at:05d}.json")
        for at in range(0, len(asked), QUESTIONS_PER_JOB)
    ]
    (run.folder / "state").mkdir(parents=True, exist_ok=True)
    todo = [job for job in jobs if not job[1].exists()]
    counted, before = run.counted("answering in full"), len(jobs) - len(todo)
    run_jobs(workers, _write_scores, todo, lambda done, _: counted(before + done, len(jobs)))
    rows = [row for _, path in jobs for row in json.loads(path.read_text())]
    return DraftScores(*torch.tensor(rows).T)


def _write_scores(pipeline: Pipeline, asked: Sequence[Asked], path: Path) -> None:
    """Whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps([_score(pipeline, *one) for one in asked]))
    partial.replace(path)


def _score(
    pipeline: Pipeline, photo: tuple[Path, str], example: Example
) -> tuple[float, float, float]:
    """The drafter's confidence, and the scores of its answer and of the full one."""
    archive, name = photo
    with zipfile.ZipFile(archive) as photos:
        image = io.BytesIO(photos.read(name))
    answer = pipeline.answer(image, example.question, fast_path=False)
    draft = answer.state.draft
    drafted, full = (_right(example.answers, text) for text in (draft.answer, answer.text))
    return draft.confidence, drafted, full


def _right(answers: Mapping[str, float], text: str) -> float:
    return answers.get(normalise(text), 0.0)


def by_source(asked: Sequence[Asked]) -> dict[str, list[int]]:
    """Rows of each source, and of all."""
    groups: dict[str, list[int]] = {"all": list(range(len(asked)))}
    for row, (_, example) in enumerate(asked):
        groups.setdefault(example.source, []).append(row)
    return groups


def summary(scores: DraftScores, asked: Sequence[Asked], threshold: float) -> dict[str, Any]:
    """At one threshold, for all questions and by source."""
    return {name: scores.select(rows).at(threshold) for name, rows in by_source(asked).items()}
