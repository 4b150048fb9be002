"""The one record that every data set yields, and what a data set must be able to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

QuestionId = int | str  # as the official file writes it


@dataclass(frozen=True, slots=True)
class Example:
    question_id: QuestionId
    image: Path  # where the official layout puts it; it need not exist to score answers
    question: str
    answers: tuple[str, ...]  # as people gave them; empty where the split keeps them back
    category: str = ""
    record: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the official row


class DataSet(Protocol):
    """Official files in, examples out, and back."""

    @property
    def name(self) -> str: ...

    @property
    def splits(self) -> tuple[str, ...]: ...

    def load(self, folder: Path, split: str, images: Path) -> list[Example]:
        """The examples of a split, in file order, from the official files in `folder`."""
        ...

    def write(self, examples: Sequence[Example], folder: Path, split: str) -> None:
        """Official files with these examples only, so that a part of a split can be scored."""
        ...

    def write_predictions(self, answers: Mapping[QuestionId, str], path: Path) -> None:
        """The predictions file that the official scorer of this data set reads."""
        ...
