"""What ConceptNet says of the things that photos show, as statements that can be asked about.

Enters: a library and the labels of photos. Leaves: for each label its best sentences, taken apart,
and for each of these all labels of which the same is said. Only indexes named after ConceptNet are
read: they have the plain sentences that can be taken apart, and to go through the passages of all
others would take most of a minute. People typed these sentences and a program cut them down to base
forms, so what is long, vague, unfit to be asked or no longer English is left out, as far as words
show it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skipqa.knowledge import Library
from skipqa.tasks.facts import content, forms
from skipqa.tasks.okvqa import normalise
from skipqa.training.retrieval.corpora import CONCEPTNET, ENDS, FOUND_IN, understand

IS = "is"
BEST = 24  # statements about a thing: ConceptNet's sentences come in the order of their votes
MAX_WORDS = 12  # of a sentence
MAX_ANSWER_WORDS = 3
MAX_WORDS_OF = {IS: 2, "can be": 1}  # those that more words seldom leave English
# Where ConceptNet's title for what a label means is another
TITLES = {
    "baseball glove": "glove", "dining table": "table", "hair drier": "hair dryer",
    "mouse": "computer mouse", "potted plant": "plant", "remote": "remote control",
    "scissors": "scissor", "skis": "ski", "sports ball": "ball",
}  # fmt: skip
ARTICLES = ("a", "an", "the")
_VAGUE = frozenset(
    """any bad color colour cool different fun good great important interesting item lot many nice
    noun object place popular same stuff thing useful word""".split()
)
_UNFIT = frozenset(
    """ass bastard bisexual bitch bomb breast christian crap damn dead death die drug drunk fat fuck
    gay genocide god gun hell hurt idiot jew kill murder muslim naked nude pee penis piss poop rape
    sex sexual sexy shit slave stupid suicide terrorist ugly vagina vomit""".split()
)
_ON = "beach|bench|counter|desk|desktop|farm|floor|freeway|plate|road|roof|rug|shelf|street|table"
# Base forms that read as another word, and the preposition of all places -> what people write
_REPAIRS = tuple(
    (re.compile(rf"\b{pattern}\b"), text)
    for pattern, text in (
        ("live ?room|livingroom", "living room"),
        ("dine room", "dining room"),
        ("park lot", "parking lot"),
        ("steer wheel", "steering wheel"),
        ("office build", "office building"),
        ("a build", "a building"),
        ("a (green )?leave", r"\1leaves"),
        ("(?:a )?clothe", "clothes"),
        ("a fur", "fur"),
        ("in Park", "in a park"),
        ("in Town", "in a town"),
        ("resturant", "restaurant"),
        (r"(\w{4,}ing)ing", r"\1"),
        (f"in (an? (?:{_ON}))", r"on \1"),
    )
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence about a thing, taken apart."""

    sentence: str
    between: str  # the thing and what is said of it
    predicate: str  # all that is said: "is used for cooking"

    @property
    def other(self) -> str:
        """What follows what stands between, of a place with its preposition."""
        return self.predicate.removeprefix(self.between).strip()

    @property
    def answer(self) -> str:
        """To a question that starts from the thing, normalised."""
        text = self.other.partition(" ")[2] if self.between == FOUND_IN else self.other
        return normalise(text.removeprefix("to "))


@dataclass(frozen=True, slots=True)
class Statements:
    of_label: Mapping[str, tuple[Statement, ...]]  # the best first; labels without any are left out
    same_of: Mapping[str, frozenset[str]]  # predicate -> all labels of which as much is said


def title_of(label: str) -> str:
    return TITLES.get(label, label)


def read(library: Library, labels: Iterable[str]) -> Statements:
    """Labels that no passage is about, and a library without ConceptNet, have no statements."""
    sentences = _sentences(library, labels)
    found = {label: _statements(title_of(label), some) for label, some in sentences.items()}
    kinds = _kinds(found.values())
    best = {
        label: tuple(one for one in some if one.between != IS or _last(one) in kinds)[:BEST]
        for label, some in found.items()
    }
    said_of = _SaidOf(sentences)
    predicates = {one.predicate for some in best.values() for one in some}
    return Statements(
        {label: some for label, some in best.items() if some},
        {predicate: said_of(predicate) for predicate in predicates},
    )


def _kinds(statements: Iterable[Iterable[Statement]]) -> frozenset[str]:
    """Kinds and qualities that several things are said to be. What one alone "is" has often lost
    the words that made it English: a pizza is no "bake oven"."""
    count = Counter(
        last for some in statements for last in {_last(one) for one in some if one.between == IS}
    )
    return frozenset(last for last, labels in count.items() if labels > 1)


def _last(one: Statement) -> str:
    return one.answer.rpartition(" ")[2]


def _sentences(library: Library, labels: Iterable[str]) -> dict[str, list[str]]:
    """All that is said of each label, and of others with a word about it."""
    found: dict[str, list[str]] = {label: [] for label in labels}
    label_of = {title_of(label): label for label in found}
    for name, index in library.indexes.items():
        if CONCEPTNET in name:
            for row in range(index.bases[-1]):
                passage = index.passage(row)
                label = label_of.get(passage.title)
                if label is not None and index.row_of(passage.id) == row:  # it was not deleted
                    found[label] += map(_repaired, ENDS.split(passage.text))
    return found


def _repaired(sentence: str) -> str:
    for pattern, text in _REPAIRS:
        sentence = pattern.sub(text, sentence)
    return sentence


def _statements(title: str, sentences: Iterable[str]) -> list[Statement]:
    found: dict[str, Statement] = {}
    for sentence in sentences:
        parsed = understand(sentence)
        if parsed is not None and _subject(sentence, *parsed) == title:
            one = Statement(sentence, *parsed)
            if _can_be_asked(one, title):
                found.setdefault(one.predicate, one)
    return list(found.values())


def _subject(sentence: str, between: str, predicate: str) -> str:
    """The thing that the sentence is about, without its article."""
    said = predicate.removeprefix(between) if between == FOUND_IN else f" {predicate}"
    thing = sentence.removeprefix("You can find ").removesuffix(f"{said}.").lower()
    first, _, rest = thing.partition(" ")
    return rest if first in ARTICLES else thing


def _can_be_asked(one: Statement, title: str) -> bool:
    words = content(one.predicate)
    all_forms = frozenset().union(*map(forms, words))
    named = frozenset().union(*map(forms, title.split()))
    return (
        len(one.sentence.split()) <= MAX_WORDS
        and re.search(r"\d", one.sentence) is None
        and any(forms(word).isdisjoint(_VAGUE) for word in words)
        and all_forms.isdisjoint(_UNFIT)
        and all_forms.isdisjoint(named)  # it would tell its answer
        and _reads_as_english(one)
    )


def _reads_as_english(one: Statement) -> bool:
    """Base forms in a row seldom do ("is device heat food", "is used for roast turkey")."""
    first, *rest = one.other.split()
    most = MAX_WORDS_OF.get(one.between, MAX_ANSWER_WORDS)
    if not 0 < len(one.answer.split()) <= most:
        return False
    whole = not rest or first in ARTICLES or first.endswith("ing")
    return whole or one.between not in (IS, "is used for")


class _SaidOf:
    """Of which labels something is said: of those with a sentence that has all of its content
    words, in any inflection. A label's own name counts as said of it."""

    def __init__(self, sentences: Mapping[str, list[str]]) -> None:
        self._places: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)  # by form of a word
        for label, some in sentences.items():
            for number, sentence in enumerate([label, *some]):
                for word in content(sentence):
                    for form in forms(word):
                        self._places[form].add((label, number))

    def __call__(self, predicate: str) -> frozenset[str]:
        places = (
            set().union(*(self._places.get(form, ()) for form in forms(word)))
            for word in content(predicate)
        )
        return frozenset(label for label, _ in set.intersection(*places))
