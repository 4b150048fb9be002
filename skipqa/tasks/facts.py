"""Whether a passage states a fact, and whether two answers differ in number alone.

Enters: plain text. Leaves: yes or no. Both are compared word by word in base forms, so `states` is
a test of words: it does not know who does what to whom ("a bus is cheaper than a taxi" has the
words of "a taxi is cheaper than a bus"), and neither synonyms nor irregular verbs.
"""

from __future__ import annotations

import re

from skipqa.language import STOP_WORDS, base_forms, words_of
from skipqa.tasks.text import NUMBER_WORDS

# Words in which knowledge bases spell a relation ("X belongs to the category of Y", "something you
# find at X is Y"): a passage that relates X and Y seldom has them.
_RELATION_WORDS = frozenset(
    """be belong belongs capable category find finds found generally location property related
    something sometimes subclass subject things together useful""".split()
)
_EMPTY = (STOP_WORDS | _RELATION_WORDS) - {"people"}  # people are what many facts are about
_RELATION_NAME = re.compile(r"/r/\w+")  # as in (kite,/r/HasA,tail)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_VERB_ENDINGS = ("ing", "ed")
_SHORTEST_STEM = 3


def states(fact: str, passage: str) -> bool:
    """Whether every content word and number of `fact` occurs in `passage`, in any inflection.

    Articles, auxiliaries, "is used for" and the words of a relation are no content words. A fact
    without any content is stated by nothing.
    """
    needed = content(fact)
    if not needed:
        return False
    found = frozenset().union(*map(forms, _words(passage)))
    return all(not forms(word).isdisjoint(found) for word in needed)


def differ_in_number_alone(first: str, second: str) -> bool:
    """Whether two answers are the same words, of which some may be singular or plural."""
    one, two = first.split(), second.split()
    return len(one) == len(two) and all(
        not base_forms(a).isdisjoint(base_forms(b)) for a, b in zip(one, two, strict=True)
    )


def content(text: str) -> list[str]:
    """Its words without articles, auxiliaries and the words of a relation."""
    return [word for word in _words(text) if word not in _EMPTY and (len(word) > 1 or _digit(word))]


def _words(text: str) -> list[str]:
    """Lower case; parts of a hyphenated word are words, and a possessive is its noun."""
    text = _RELATION_NAME.sub(" ", text).replace("-", " ")
    words = [re.split(r"['’]", word)[0] for word in words_of(text)]
    return words + [number.replace(",", "") for number in _NUMBER.findall(text)]


def forms(word: str) -> frozenset[str]:
    """What a word may be an inflection of; a number word is also its digits."""
    found = set(base_forms(word))
    if word in NUMBER_WORDS:
        found.add(NUMBER_WORDS[word])
    for ending in _VERB_ENDINGS:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= _SHORTEST_STEM:
            found |= {stem, f"{stem}e"}
            if stem[-1] == stem[-2]:  # running
                found.add(stem[:-1])
            if stem[-1] == "i":  # carried
                found.add(f"{stem[:-1]}y")
    return frozenset(found)


def _digit(word: str) -> bool:
    return word[0].isdigit()
