"""Which benchmarks are tasks of lmms-eval, where their official files are, and what is reported.

Enters: the line of a task's JSON file, {"benchmark", "folder", "images", "split"}, of which only
the first must be there; environment variables fill in the rest. Leaves: a `Source`, and its
examples. Nothing is downloaded. It does not know lmms-eval.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skipqa.errors import UserError, choices
from skipqa.tasks import TASKS, Example, Report, Task
from skipqa.tasks.evqa import EVQA
from skipqa.tasks.photos import Photos, with_photos

DATA, BEM = "SKIPQA_DATA", "SKIPQA_BEM"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A task, the folder of its files below `SKIPQA_DATA`, and the metrics of its report."""

    task: Callable[[], Task]
    folder: str
    metrics: Mapping[str, tuple[str, ...]]  # name -> where the official report has it
    mean: str = ""  # the metric that is the mean of the questions' scores, and so has an error

    def metric(self, report: Report, name: str) -> float:
        """In percent, as the official scorer rounds it."""
        found: Any = report.scores
        for key in self.metrics[name]:
            found = found[key]
        return float(found)


@lru_cache(maxsize=1)  # the model is read once
def _evqa_with_bem() -> Task:
    if not os.environ.get(BEM):
        raise UserError(f"set {BEM} to the folder of the BEM model, or use skipqa_evqa")
    return EVQA.with_options(bem=Path(os.environ[BEM]))


def _benchmark(name: str, folder: str, mean: str = "", **metrics: tuple[str, ...]) -> Benchmark:
    return Benchmark(partial(TASKS.__getitem__, name), folder, metrics, mean)


BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {
        "okvqa": _benchmark("okvqa", "okvqa", "accuracy", accuracy=("overall",)),
        "aokvqa": _benchmark("aokvqa", "aokvqa", "direct_answer", direct_answer=("direct_answer",)),
        "aokvqa_mc": _benchmark(
            "aokvqa-multiple-choice",
            "aokvqa",
            "multiple_choice",
            multiple_choice=("multiple_choice",),
        ),
        "infoseek": _benchmark(
            "infoseek",
            "infoseek",
            final_score=("final_score",),
            unseen_question=("unseen_question_score", "score"),
            unseen_entity=("unseen_entity_score", "score"),
        ),
        "evqa": _benchmark("evqa", "evqa", "exact_match", exact_match=("exact_match",)),
        "evqa_bem": Benchmark(_evqa_with_bem, "evqa", {"accuracy": ("accuracy",)}, "accuracy"),
        "viquae": _benchmark(
            "viquae", "viquae", "exact_match", exact_match=("exact_match",), f1=("f1",)
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Source:
    """The official files of a split."""

    benchmark: str
    folder: str
    images: str
    split: str

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Source:
        """From the line of a task, then from the environment, then from the benchmark."""
        name = str(given.get("benchmark"))
        if name not in BENCHMARKS:
            raise UserError(f"unknown benchmark {name!r}: use {choices(name, BENCHMARKS)}")
        benchmark, task = BENCHMARKS[name], BENCHMARKS[name].task()
        variable = f"SKIPQA_{benchmark.folder.upper()}"
        folder = given.get("folder") or os.environ.get(variable)
        if not folder:
            if not os.environ.get(DATA):
                raise UserError(
                    f"{task.title}: set {DATA} to the folder that holds {benchmark.folder}/ with "
                    f"the official files, or {variable} to the folder of the files"
                )
            folder = Path(os.environ[DATA]) / benchmark.folder
        found = os.environ.get(f"{variable}_SPLIT")
        split = str(given.get("split") or found or task.default_split)
        found = os.environ.get(f"{variable}_IMAGES")
        images = given.get("images") or found or task.images(Path(folder), split)
        return cls(name, str(folder), str(images), split)

    @property
    def task(self) -> Task:
        return BENCHMARKS[self.benchmark].task()


@lru_cache(maxsize=8)  # documents come one by one and name their source
def examples(source: Source) -> list[Example]:
    """In file order, those without a photo included: a document's number is a place here."""
    return source.task.load(Path(source.folder), source.split, Path(source.images))


@lru_cache(maxsize=8)
def photos(source: Source) -> Photos:
    return Photos(Path(source.images))


def documents(source: Source) -> list[dict[str, Any]]:
    """One per question that has a photo, in plain values, each fit to be scored."""
    loaded = examples(source)
    present, bad = with_photos(loaded, photos(source))
    if bad:
        log.warning("%s: %d questions are left out; %s", source.benchmark, len(bad), bad[0])
    for example in present:
        source.task.check(example)
    there = {id(example) for example in present}
    return [
        {
            "benchmark": source.benchmark,
            "folder": source.folder,
            "images": source.images,
            "split": source.split,
            "number": number,
            "question_id": str(example.id),
            "image": example.image,
            "question": example.question,
            "answers": list(example.answers),
        }
        for number, example in enumerate(loaded)
        if id(example) in there
    ]


def example_of(document: Mapping[str, Any]) -> tuple[Source, Example]:
    source = Source(*(document[name] for name in ("benchmark", "folder", "images", "split")))
    return source, examples(source)[document["number"]]
