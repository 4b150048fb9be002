"""A query with the passages that answer it, and where queries come from.

Whoever makes one knows the passages; whoever trains with it needs nothing else of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from skipqa.data.held_out import is_id_held_out

ARTICLES = "articles"
# Where queries come from: made from passages, asked by people and by Pocket-KB, and held-out
# wordings of some. Articles are all passages that no corpus of our own has.
MADE = ("wordnet", "factbook", "conceptnet", ARTICLES)
ASKED = ("pocket-kb", "okvqa", "fvqa")
TRAIN_SOURCES = MADE + ASKED
HELD_OUT_SOURCES = ("held-out wordings", "held-out wordings, factbook")
SOURCES = TRAIN_SOURCES + HELD_OUT_SOURCES

Draw = Callable[[str], Random | None]  # by the id of a passage: chance, where it gets a question


@dataclass(frozen=True, slots=True)
class Query:
    name: str  # empty where the text stands alone
    text: str
    gold: tuple[str, ...]
    source: str
    held_out: bool

    @property
    def whole(self) -> str:
        return f"{self.name}: {self.text}" if self.name else self.text


def made_from(name: str, text: str, id: str, source: str) -> Query:
    return Query(name, text, (id,), source, is_id_held_out(id))
