"""Content words and base forms of English, for the training-free stages. Knows no models."""

from __future__ import annotations

import re
from collections.abc import Iterable

STOP_WORDS = frozenset(
    """a about above across after all also an and another any are around as at be because been
    before being below between both but by can come comes could did do does doing done during
    each for from get gets give given go goes had has have having here him his how if in into is
    it its just kind kinds know known like likely look made make makes many may me mean might more
    most much must my name named need no nor not now of off on one only or other our out over own
    part people picture photo image scene seen shown show shows sort called so some such than
    that the their them then there these they thing this those through to too type types under
    until up use used uses using usually very was we were what when where which while who whom
    whose why will with would you your often common commonly originally original first tell does
    it's what's he she""".split()
)

# Suffixes and their replacements, as in WordNet's rules for nouns and verbs.
_ENDINGS = (
    ("ies", ("y",)),
    ("ves", ("f", "fe")),
    ("ses", ("s", "se")),
    ("xes", ("x",)),
    ("zes", ("z", "ze")),
    ("ches", ("ch",)),
    ("shes", ("sh",)),
    ("men", ("man",)),
    ("s", ("",)),
)
_IRREGULAR = {
    "mice": "mouse", "geese": "goose", "feet": "foot", "teeth": "tooth", "children": "child",
    "people": "person", "oxen": "ox", "leaves": "leaf", "knives": "knife", "wolves": "wolf",
}  # fmt: skip


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-zà-öø-ÿ]+(?:['’-][a-zà-öø-ÿ]+)*", text.lower())


def content_words(text: str) -> tuple[str, ...]:
    """The distinct words in order, without stop words and one-letter words."""
    return tuple(dict.fromkeys(w for w in words_of(text) if w not in STOP_WORDS and len(w) > 1))


def all_forms(words: Iterable[str]) -> set[str]:
    """The base forms of all words."""
    return {form for word in words for form in base_forms(word)}


def base_forms(word: str) -> frozenset[str]:
    """The word and the singulars it may be a plural of."""
    forms = {word, _IRREGULAR.get(word, word)}
    for ending, replacements in _ENDINGS:
        if word.endswith(ending) and len(word) > len(ending) + 1 and not word.endswith("ss"):
            stem = word[: -len(ending)]
            forms |= {stem + replacement for replacement in replacements}
    return frozenset(forms)
