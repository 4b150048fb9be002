"""An example of a task, and what training alone needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass

from skipqa.tasks.example import Example


@dataclass(frozen=True, slots=True)
class TrainExample(Example):
    """Its answers are normalised, those that score nothing left out."""

    photo: int = -1  # a row of the mixture's table of photos
    hops: tuple[tuple[str, ...], ...] = ()  # for each step to the answer, passages that state it

    @property
    def needs_knowledge(self) -> bool:
        """The image is not enough, and a passage is known that states the rest."""
        return bool(self.hops)
