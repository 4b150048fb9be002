"""One question about one image, with all that a data set knows of its answer.

Every data set is read into this record; the harness, the reports and training use nothing else.
It holds no pixels: `image` is a name below the folder, or inside the zip, of the photos.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skipqa.types import Box

QuestionId = int | str  # as the file writes it


@dataclass(frozen=True, slots=True)
class Example:
    id: QuestionId
    image: str
    question: str
    # Text, in the form in which the task compares it -> score in [0, 1]. Empty where the split
    # keeps its answers back. Tasks with a rule of their own (numbers, lists) score by `record`.
    answers: Mapping[str, float] = field(default_factory=dict)
    choices: tuple[str, ...] = ()
    category: str | None = None
    type: str | None = None  # what the question needs, such as lookup or ocr
    subsets: tuple[str, ...] = ()  # a question may be in several
    popularity: float | str | None = None
    gold: tuple[frozenset[str], ...] = ()  # for each step, passages of which one is enough
    fact: str | None = None  # a passage that states it (`facts.py`) is as good as a gold one
    name: str | None = None  # of the thing asked about
    box: Box | None = None  # where that thing is
    split: str = ""
    source: str = ""  # the data set
    record: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the official row
    line: int | None = None  # in its file, where a file has a question per line

    @property
    def place(self) -> str:
        """Where to find it, for a message."""
        return f"question {self.id}" if self.line is None else f"line {self.line}"
