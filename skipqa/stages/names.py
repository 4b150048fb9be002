"""The named things that a question is about: those that its image may show, those that it names.

Enters: a state with regions, or the text of a question. Leaves: names, the most probable first. The
image's are the concepts of its regions, by their posterior. Those of the question are found by
rules: quotations and runs of capitalised words. Whether a capital at the beginning of a sentence
makes a name is told by the titles of the library: an ordinary word is in a dictionary. No network
runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from skipqa.backbones.concepts import Concepts, plain_name
from skipqa.language import STOP_WORDS, base_forms
from skipqa.nn.tagger import bare_name
from skipqa.stages.regions import probs_given
from skipqa.state import State

MAX_WORDS, MAX_CHARACTERS = 8, 80  # of one name
QUOTED = re.compile(r"[\"“„«]([^\"“”„«»]{2,80})[\"”“»]")
WORD = re.compile(r"[^\W_][\w.&’'-]*")
SENTENCE_START = re.compile(r"(?:^|[.!?:;]\s+)[(\s]*$")
GENITIVE = re.compile(r"[’']s?$")
ABBREVIATION = re.compile(r"(?:Mr|Mrs|Ms|Dr|Prof|Sir|St|(?:[^\W\d_]\.)*[^\W\d_])\.")
# Between two capitalised words they belong to the name: "Bay of Bengal", "Ludwig van Beethoven"
JOINING = frozenset("of the de la le du di da del der den van von and & for y".split())


class NamedThing(NamedTuple):
    names: tuple[str, ...]  # the first is the one to ask for
    prob: float


def shown_things(state: State, concepts: Concepts, min_prob: float) -> list[NamedThing]:
    """What the regions show, each thing once, as probable as the surest region has it."""
    best: dict[str, NamedThing] = {}
    for region in state.regions:
        for concept, prob in probs_given(state.question, region).items():
            if prob < min_prob:
                continue
            names = _names(concepts[concept].names)
            key = plain_name(names[0])  # a breed may be a class and one of a tagger's names
            if key not in best or prob > best[key].prob:
                best[key] = NamedThing(names, prob)
    return sorted(best.values(), key=lambda thing: -thing.prob)


def named_in(question: str, is_title: Callable[[str], bool]) -> list[str]:
    """Names in the text of a question, in order, each once. `is_title` says whether the library has
    a passage of this title."""
    found = [match[1].strip() for match in QUOTED.finditer(question)]
    unquoted = QUOTED.sub(" , ", question)
    if any(c.islower() for c in unquoted):  # in capitals throughout, a capital says nothing
        found += _capitalised(unquoted, is_title)
    fitting = (
        name
        for name in found
        if 1 < len(name) <= MAX_CHARACTERS
        and name.isprintable()
        and len(name.split()) <= MAX_WORDS
        and not STOP_WORDS.issuperset(name.lower().split())
    )
    return list(dict.fromkeys(fitting))


def _names(names: Sequence[str]) -> tuple[str, ...]:
    """A flag by its country."""
    return tuple(dict.fromkeys(bare_name(name) for name in names))


def _capitalised(question: str, is_title: Callable[[str], bool]) -> Iterator[str]:
    """Maximal runs of capitalised words, with what joins them."""
    run: list[str] = []
    end = 0  # of the run so far
    for match in WORD.finditer(question):
        word = match[0]
        if run and not question[end : match.start()].isspace():  # a comma, a bracket
            yield from _name(run)
            run = []
        if _is_capital(match, question, is_title, bool(run)) or (run and word in JOINING):
            run.append(word)
            end = match.end()
        else:
            yield from _name(run)
            run = []
        ends = word.endswith(".") and not ABBREVIATION.fullmatch(word)
        if run and (ends or GENITIVE.search(word)):
            yield from _name(run)
            run = []
    yield from _name(run)


def _is_capital(
    match: re.Match[str], question: str, is_title: Callable[[str], bool], follows_name: bool
) -> bool:
    """Whether the word may be part of a name."""
    word = match[0]
    if follows_name:  # also a number: "Boeing 747"
        return word[0].isupper() or word[0].isdigit()
    if not word[0].isupper() or word == "I":
        return False
    if not SENTENCE_START.search(question[: match.start()]):
        return True
    low = _bare(word).lower()
    after = WORD.match(question, match.end() + 1)
    if low in STOP_WORDS and not ABBREVIATION.fullmatch(word):
        return False
    if after is not None and after[0][0].isupper():
        return True
    return not any(is_title(form) for form in base_forms(low))  # an ordinary word is a title


def _name(run: Sequence[str]) -> Iterator[str]:
    words = list(run)
    while words and words[-1] in JOINING:
        words.pop()
    if words:
        words[-1] = _bare(words[-1])
        yield " ".join(words)


def _bare(word: str) -> str:
    """Without the ending of a genitive and the end of the sentence."""
    return GENITIVE.sub("", word if ABBREVIATION.fullmatch(word) else word.rstrip(".&-"))
