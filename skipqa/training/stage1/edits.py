"""Facts that nobody can know by heart: passages in which another answer stands.

Enters: the passages of a prompt, the answers that are right, an answer of a question of the same
kind. Leaves: the same passages, saying the other one. A reader that was trained on the facts of a
corpus remembers them: without such prompts it answers what it knows, whatever the passages say.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from skipqa.tasks.okvqa import normalise
from skipqa.training.example import RIGHT, TrainExample


def edited(texts: Sequence[str], answers: Mapping[str, float], other: str) -> list[str] | None:
    """Every right answer that stands in a text as whole words gives way to `other`. None where none
    does, or where one is still told in other words ("3" and "three")."""
    longest_first = sorted(map(re.escape, answers), key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)", re.IGNORECASE)
    found = [pattern.sub(lambda _: other, text) for text in texts]
    if found == list(texts) or any(holds_answer(text, answers) for text in found):
        return None
    return found


def holds_answer(passage: str, answers: Mapping[str, float]) -> bool:
    """Whether a right answer stands there as whole words."""
    words = f" {normalise(passage)} "
    return any(f" {text} " in words for text, score in answers.items() if score >= RIGHT)


class OtherAnswers:
    """Answers of questions that name their passages, by category."""

    def __init__(self, examples: Iterable[TrainExample]) -> None:
        known: defaultdict[str | None, set[str]] = defaultdict(set)
        for example in examples:
            if example.hops and example.answers:
                known[example.category].add(max(example.answers, key=example.answers.__getitem__))
        self.of_category = {category: sorted(some) for category, some in known.items()}

    def draw(self, example: TrainExample, draw: Random) -> str | None:
        """One that is wrong for this question, if it names its passages."""
        if not example.hops:
            return None
        known = self.of_category.get(example.category, [])
        wrong = [text for text in known if text not in example.answers]
        return draw.choice(wrong) if wrong else None
