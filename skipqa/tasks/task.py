"""What a task is: official files that are read into examples, and an official score.

`Scorer` is all that the harness needs. `Task` adds what the command line needs: names, splits and
files. `TaskDefaults` has what most tasks share, `RowsPerSplit` what those with one file per split
do. A task knows nothing of the systems that answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Protocol, Self

from skipqa.errors import UserError, choices
from skipqa.files import write_jsonl
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.scores import Report

# Parameters of a `FileScorer`; the text is the help of the option that names the file.
Predictions = Annotated[Path, "Predictions, in the benchmark's own layout"]
References = Annotated[Path, "The data set with its answers"]
FileScorer = Callable[..., Report]


class Scorer(Protocol):
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
    def name(self) -> str:
        """As in `skipqa eval NAME`, and as `run.json` records it."""
        ...

    @property
    def title(self) -> str:
        """The name of the benchmark as papers write it."""
        ...

    @property
    def splits(self) -> tuple[str, ...]: ...

    @property
    def default_split(self) -> str:
        """The split that is asked where none is given: one with public answers, not train."""
        ...

    @property
    def predictions_name(self) -> str:
        """The name of the file that `write_predictions` writes."""
        ...

    @property
    def has_command(self) -> bool:
        """Whether it is `skipqa eval NAME`; False if an option of another task selects it."""
        ...

    @property
    def with_options(self) -> Callable[..., Task]:
        """The task as the options of `skipqa eval NAME` that it alone has select it.

        The parameters of the method are these options, each with a default; the text in
        `Annotated[bool, "..."]` is the help.
        """
        ...

    def file_scorers(self) -> Mapping[str, FileScorer]:
        """What `skipqa score NAME` calls, by NAME.

        The parameters of a function are the files that it reads, and so the options of the
        command; the text in `Annotated[Path, "..."]` is the help.
        """
        ...

    def check(self, example: Example) -> None:
        """One clear line, before anything is asked, where an example cannot be scored."""
        ...

    def files(self, folder: Path, split: str) -> tuple[Path, ...]:
        """The official files that `load` reads, the questions first."""
        ...

    def images(self, folder: Path, split: str) -> Path:
        """Where the photos of a split lie unless told otherwise."""
        ...

    def load(self, folder: Path, split: str, images: Path | None = None) -> list[Example]:
        """The examples of a split, in file order.

        `folder` has the official files, with their official names (`files`). `split` is one of
        `splits`. `images` is the folder or zip of the photos, by default that of `self.images`;
        only a task whose files do not name the photos in full looks there. The photos need not be
        there: an example has the name of its photo, relative to `images`.
        """
        ...

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        """Official files with these examples only, so that a part of a split can be scored."""
        ...

    def write_predictions(self, predictions: Mapping[QuestionId, str], path: Path) -> None:
        """The predictions file that the official scorer reads."""
        ...


class TaskDefaults:
    """What most tasks share: photos in `images/`, an answer that is its own prediction, a command
    without options of its own, and no scoring of predictions files."""

    predictions_name = "predictions.json"

    @property
    def has_command(self) -> bool:
        return True

    def with_options(self) -> Self:
        return self

    def file_scorers(self) -> Mapping[str, FileScorer]:
        return {}

    def images(self, folder: Path, split: str) -> Path:
        return folder / "images"

    def check(self, example: Example) -> None:
        if not example.answers:
            raise UserError(f"{example.place}: its split keeps the answers back")

    def prediction(self, example: Example, answer: str) -> str:
        return answer


class RowsPerSplit:
    """Of a task whose splits are files of JSON Lines, a row per example."""

    def files(self, folder: Path, split: str) -> tuple[Path]:
        return (folder / f"{split}.jsonl",)

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        write_jsonl(self.files(folder, split)[0], (example.record for example in examples))


def official_file(collection: str, folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        from skipqa.data.download import manifest  # here alone: the command line starts without it

        fetch = f"fetch it with `skipqa data fetch {collection} --to {folder}` or "
        advice = f"{fetch if collection in manifest() else ''}set the folder that holds it"
        raise UserError(f"{path} does not exist: {advice}")
    return path


def require_split(task: str, split: str, splits: Collection[str]) -> None:
    if split not in splits:
        raise UserError(f"{task} has no split {split!r}: use {choices(split, splits)}")
