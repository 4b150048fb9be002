"""Words that people use of a photo when they ask about it: weak labels for the tagger.

Enters: training questions with their answers, and WordNet's nouns. Leaves: the words that are
frequent enough to be learned, and the photos in whose questions each stands. "What is the man on
the beach holding?" says that the photo shows a beach, and "Where was this taken?" if the answer
does. COCO's labels have no places, activities or clothes. A photo whose questions mention no beach
may show one all the same, so the probabilities that are learned from this are those of a mention.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from skipqa.language import STOP_WORDS, base_forms, content_words, words_of
from skipqa.training.example import RIGHT, TrainExample
from skipqa.wordnet import Nouns

SOURCES = ("coco", "okvqa")  # people's own questions about photos of all kinds
LEAST = 40  # photos that mention a word
# Nouns of what can be seen, by the lexicographers' file: acts, animals, artefacts, food, places,
# objects, people, phenomena, plants
VISIBLE = frozenset((4, 5, 6, 13, 15, 17, 18, 19, 20))
# What questions say of any photo, or of what is not seen
EMPTY = frozenset(
    """activity adult american animal answer area article background boards bottom brand
    building business carry cell center character class clean colored colors coming company
    component corner country cover covering creature cross cutting device direction distance
    double down drive dry edge empty enclosure end equipment event example exercise facing
    female fly front game gear getting going guy half hands height hit hold holder holding human
    image individual instrument item job kind lady left length letter level line logo looking
    machine main make maker making male mark material middle mode model move name need number
    object occupation one open part pass pattern people person photo photograph pic picture
    piece place play player playing point pose position post practice print product pull pulling
    purpose ride right round run same scene season see set setting shape short show side sight
    sort space sport spot stand state structure style subject surface system taking teddy tool
    top toy transport transportation type us use vehicle view waiting walk watch watching way
    white word work year young""".split()
)
_SURE = ("what", "where", "which", "who", "why", "how", "when", "name")  # presuppose what they say


@dataclass(frozen=True, slots=True)
class Mentioned:
    photos: Mapping[str, frozenset[int]]  # by word: those that it is used of
    asked_about: frozenset[int]  # photos of which another word counts as absent


NOT_MENTIONED = Mentioned({}, frozenset())


def mentioned(examples: Sequence[TrainExample], known: Iterable[str], nouns: Nouns) -> Mentioned:
    """In training questions; words that are `known` already are left out."""
    left_out = EMPTY | {form for name in known for form in base_forms(name)}
    asked = [one for one in examples if one.split == "train" and one.source in SOURCES]
    photos: defaultdict[str, set[int]] = defaultdict(set)

    @cache
    def visible(word: str) -> str | None:
        """As a singular noun."""
        for form in sorted(base_forms(word), key=len):
            if (id := nouns.first_sense(form)) and nouns[id].file in VISIBLE:
                return None if form in left_out else form
        return None

    for example in asked:
        for noun in filter(None, map(visible, _words(example))):
            photos[noun].add(example.photo)
    frequent = sorted(word for word, some in photos.items() if len(some) >= LEAST)
    return Mentioned(
        {word: frozenset(photos[word]) for word in frequent},
        frozenset(example.photo for example in asked),
    )


def _words(example: TrainExample) -> Iterator[str]:
    """Of a question that presupposes what it says, and, of perceptual ones, of right answers."""
    first, *_ = [*words_of(example.question), ""]
    if first.partition("'")[0] not in _SURE:
        return
    texts = [example.question]
    if example.source == "coco":
        texts += (answer for answer, score in example.answers.items() if score >= RIGHT)
    for text in texts:
        yield from content_words(text)
        pairs = pairwise(words_of(text))
        yield from (" ".join(pair) for pair in pairs if STOP_WORDS.isdisjoint(pair))  # living room
