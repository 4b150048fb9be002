"""What a task is: official files that are read into examples, and an official score.

`Scorer` is all that the harness needs. `Task` adds the files, which only loading and exporting
touch. A task knows nothing of the systems that answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from skipqa.errors import UserError, choices
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.scores import Report


class Scorer(Protocol):
    @property
    def name(self) -> str: ...

    def check(self, example: Example) -> None:
        """One clear line, before anything is asked, where an example cannot be scored."""
        ...

    def prediction(self, example: Example, answer: str) -> str:
        """What an answer in free text counts as: itself, or the choice nearest to it."""
        ...

    def score(self, example: Example, prediction: str) -> float:
        """The official score of one prediction, in [0, 1]."""
        ...

    def report(
        self, examples: Sequence[Example], predictions: Mapping[QuestionId, str]
    ) -> Report | None:
        """The official aggregates over these examples, each of which has a prediction."""
        ...


class Task(Scorer, Protocol):
    @property
    def splits(self) -> tuple[str, ...]: ...

    @property
    def predictions_name(self) -> str: ...

    def files(self, folder: Path, split: str) -> tuple[Path, ...]:
        """The official files that `load` reads, the questions first."""
        ...

    def images(self, folder: Path) -> Path:
        """Where the photos lie unless told otherwise."""
        ...

    def load(self, folder: Path, split: str, images: Path | None = None) -> list[Example]:
        """The examples of a split, in file order; the photos need not be there."""
        ...

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        """Official files with these examples only, so that a part of a split can be scored."""
        ...

    def write_predictions(self, predictions: Mapping[QuestionId, str], path: Path) -> None:
        """The predictions file that the official scorer reads."""
        ...


class OpenEnded:
    """What most tasks share: photos in `images/`, and an answer that is its own prediction."""

    predictions_name = "predictions.json"

    def images(self, folder: Path) -> Path:
        return folder / "images"

    def check(self, example: Example) -> None:
        if not example.answers:
            raise UserError(f"{example.place}: its split keeps the answers back")

    def prediction(self, example: Example, answer: str) -> str:
        return answer


def official_file(collection: str, folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: fetch it with `skipqa data fetch {collection} "
            f"--to {folder}` or set the folder that holds it"
        )
    return path


def require_split(task: str, split: str, splits: Collection[str]) -> None:
    if split not in splits:
        raise UserError(f"{task} has no split {split!r}: use {choices(split, splits)}")
