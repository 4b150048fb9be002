"""An example of a task, and what training alone needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass

from skipqa.tasks.example import Example

RIGHT = 0.6  # the least score of an answer that counts as right: two people gave it
IN_FACT = "kb"  # FVQA's type of a question whose answer is in the fact, not in the image


@dataclass(frozen=True, slots=True)
class TrainExample(Example):
    """Its answers are normalised, those that score nothing left out."""

    photo: int = -1  # a row of the mixture's table of photos
    hops: tuple[tuple[str, ...], ...] = ()  # for each step to the answer, passages that state it
    span: str = ""  # the words of the question that stand for the thing it is about, if known
    thing: str = ""  # that thing's name, if known

    @property
    def needs_knowledge(self) -> bool:
        """The image is not enough, and a passage is known that states the rest. Which object in it
        can heat a pot, an image and common sense can answer; what it is for, a fact does."""
        return bool(self.hops) or (self.fact is not None and self.type == IN_FACT)
