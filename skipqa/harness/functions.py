"""What the YAML files of the tasks name: a document's photo, its text, its scores.

Enters: documents (`benchmarks.documents`) and answers in text. Leaves: what lmms-eval asks for.
Every score is that of `skipqa.tasks`; an aggregate is the official report over all questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skipqa.errors import UserError
from skipqa.harness.benchmarks import BENCHMARKS, Source, documents, example_of, log, photos
from skipqa.harness.decoding import whole_photos
from skipqa.image import open_image
from skipqa.tasks import Example, QuestionId

if TYPE_CHECKING:
    from datasets import Dataset
    from PIL import Image

Document = Mapping[str, Any]
Item = dict[str, Any]  # one answer, as a metric collects it


def process_docs(lines: Dataset) -> Dataset:
    """The questions of the official files that a task's JSON file names, one line per split."""
    from datasets import Dataset

    try:
        return Dataset.from_list([doc for line in lines for doc in documents(Source.of(line))])
    except UserError as error:
        # lmms-eval tries again after any Exception and reports its own; this passes as it is.
        raise SystemExit(f"error: {error}") from None


def doc_to_visual(document: Document, _: Any = None) -> list[Image.Image]:
    source, example = example_of(document)
    with whole_photos():
        return [open_image(photos(source).open(example.image))]


def doc_to_text(document: Document, prompts: Mapping[str, str] | None = None) -> str:
    """The question alone, or between the `pre_prompt` and `post_prompt` of a task."""
    prompts = prompts or {}
    question = document["question"]
    return f"{prompts.get('pre_prompt', '')}{question}{prompts.get('post_prompt', '')}"


def doc_to_target(document: Document) -> list[str]:
    return list(document["answers"])


def process_results(document: Document, answers: Sequence[str]) -> dict[str, Item]:
    """For each metric the answer, and, where the metric is a mean, its score in percent."""
    source, example = example_of(document)
    prediction = source.task.prediction(example, answers[0])
    try:
        score = source.task.score(example, prediction)
    except UserError as error:  # a number that nobody can read: left out, as `skipqa eval` does
        log.warning("%s: %s: not counted: %s", source.benchmark, example.place, error)
        return {}
    benchmark = BENCHMARKS[source.benchmark]
    item = {**document, "prediction": prediction}
    return {
        name: item | {"metric": name} | ({"score": 100 * score} if name == benchmark.mean else {})
        for name in benchmark.metrics
    }


def official(items: Sequence[Item]) -> float:
    """The metric of these items in the official report, in percent."""
    benchmark = BENCHMARKS[items[0]["benchmark"]]
    asked: list[Example] = [example_of(item)[1] for item in items]
    predictions: dict[QuestionId, str] = {
        example.id: item["prediction"] for example, item in zip(asked, items, strict=True)
    }
    report = benchmark.task().report(asked, predictions)
    if report is None:
        raise UserError(f"{items[0]['benchmark']} has no official report")
    return benchmark.metric(report, items[0]["metric"])
