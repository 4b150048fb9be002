"""Short answers in the form in which the soft VQA accuracy compares them, and spans of text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

NOT_WORDS = re.compile(r"[^\w'. ]|\.(?!\d)")
ARTICLES = frozenset({"a", "an", "the"})
DIGITS = dict(
    zip(
        "zero one two three four five six seven eight nine ten".split(),
        map(str, range(11)),
        strict=True,
    )
)


def plain(text: str) -> str:
    """Lower case, no articles, no punctuation but apostrophes and decimal points."""
    words = NOT_WORDS.sub(" ", text.lower()).split()
    return " ".join(DIGITS.get(word, word) for word in words if word not in ARTICLES)


def without_accents(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))


def accepted(texts: Iterable[str]) -> tuple[str, ...]:
    """Each answer in plain form, also without its accents; the first is the one to prefer."""
    both = (form for text in texts for form in (plain(text), plain(without_accents(text))))
    return tuple(dict.fromkeys(form for form in both if form))


def says(passage: str, answers: Iterable[str]) -> bool:
    """Whether one of the plain answers stands in the passage as whole words."""
    words = f" {plain(passage)} "
    return any(f" {answer} " in words for answer in answers)
