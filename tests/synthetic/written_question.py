"""A question that a model wrote about a passage."""

from __future__ import annotations

from skipqa.synthetic.pairs import Pair
from skipqa.synthetic.writing import Candidate
from skipqa.types import Passage

TEXT = "Espresso is brewed by forcing hot water under pressure through ground coffee."


def candidate(
    question: str = "How is this drink brewed?", answer: str = "under pressure"
) -> Candidate:
    return Candidate(Pair("espresso", Passage("p1", "Espresso", TEXT, "made")), question, answer)
