"""Questions made from the sentences of two kinds of corpora: common sense, and articles.

Enters: passages. Leaves: queries that these answer, in wordings of our own. A sentence of
ConceptNet ("A stove is used for cooking.") is asked for from the thing ("What is it used for?") and
from what is said of it ("Which object in this image is used for cooking?"); an article by key words
of one of its sentences.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from random import Random

from skipqa.data.held_out import is_id_held_out
from skipqa.language import content_words
from skipqa.training.retrieval.paraphrases import Meaning, edited, say
from skipqa.training.retrieval.query import ARTICLES, Draw, Query, made_from
from skipqa.types import Passage

CONCEPTNET = "conceptnet"
A_THING = Meaning("", "thing", "", ())
FOUND_IN = "can be found"  # "you can find it in" places
# What stands between a thing and what is said of it -> how people ask for the latter
OF_THING: dict[str, tuple[str, ...]] = {
    "is used for": (
        "What is {it} used for?", "What can you do with {it}?", "What is the purpose of {it}?",
        "Why would somebody need {it}?", "What would I use {it} for?", "What is {it} good for?",
    ),
    "can": (
        "What can {it} do?", "What is {it} able to do?", "What does {it} do?",
        "What might {it} do next?", "What is {it} known to do?",
    ),
    "has": (
        "What does {it} have?", "Which parts does {it} have?", "What belongs to {it}?",
        "What is on {it}?",
    ),
    "is part of": (
        "What is {it} a part of?", "What does {it} belong to?", "Where does {it} go?",
    ),
    "is made of": (
        "What is {it} made of?", "Which material is {it} made from?", "What does {it} consist of?",
    ),
    FOUND_IN: (
        "Where can you find {it}?", "Where would one see {it}?", "Where is {it} usually kept?",
        "Where does {it} live?", "In which place would {it} be?",
    ),
    "can be": (
        "What can be done with {it}?", "What happens to {it}?", "What do people do to {it}?",
    ),
    "is created by": ("How is {it} made?", "Who makes {it}?", "Where does {it} come from?"),
    "is a symbol of": ("What does {it} stand for?", "What is {it} a symbol of?"),
    "wants": ("What does {it} want?", "What does {it} like?", "What would {it} enjoy?"),
    "is": (
        "What is {it}?", "What kind of thing is {it}?", "How would you describe {it}?",
        "Which category does {it} belong to?",
    ),
}  # fmt: skip
BY_PREDICATE = (
    "Which object in this image {said}?", "What in this picture {said}?",
    "Which thing in the photo {said}?", "What is there here that {said}?",
    "Name something in the image which {said}.", "Which item shown here {said}?",
    "What do you see that {said}?",
)  # fmt: skip
ABOUT_KEYS = (
    "{keys}", "What has this to do with {keys}?", "What about its {keys}?",
    "Is there something about {keys}?", "How is this connected with {keys}?",
    "What is known about {keys} here?",
)  # fmt: skip
_SENTENCE = re.compile(
    rf"(?P<thing>.+?) (?P<between>{'|'.join(sorted(OF_THING, key=len, reverse=True))}) "
    r"(?!cause |involve )(?P<other>[^.]+)\."  # what events lead to is nothing that an image shows
)
_PLACE = re.compile(r"You can find (?P<thing>.+?) (?P<where>(?:in|on|at|near|under) [^.]+)\.")
ENDS = re.compile(r"(?<=[.!?]) ")
MIN_KEYS = 3  # content words of a sentence that is asked for


def from_conceptnet(passages: Iterable[Passage], drawn: Draw) -> Iterator[Query]:
    """One question for each passage drawn. Asked from the thing, any of its passages that says
    something of the kind is an answer."""
    by_title: defaultdict[str, list[Passage]] = defaultdict(list)
    for passage in passages:
        by_title[passage.title].append(passage)
    for title, some in by_title.items():
        for passage in some:
            if (random := drawn(passage.id)) is None:
                continue
            said = [parsed for one in ENDS.split(passage.text) if (parsed := understand(one))]
            if not said:
                continue
            between, predicate = random.choice(said)
            if random.random() < 0.5:
                text = say(random.choice(OF_THING[between]), A_THING, "train", random)
                alike = [one.id for one in some if one is not passage and _says(one, between)]
                gold = (passage.id, *alike)
                held_out = is_id_held_out(passage.id)
                yield Query(title, edited(text, random), gold, CONCEPTNET, held_out)
            else:
                text = random.choice(BY_PREDICATE).format(said=predicate)
                name = title if random.random() < 0.7 else ""
                yield made_from(name, edited(text, random), passage.id, CONCEPTNET)


def understand(sentence: str) -> tuple[str, str] | None:
    """What stands between the thing and the rest, and all that is said of the thing."""
    if match := _PLACE.fullmatch(sentence):
        return FOUND_IN, f"{FOUND_IN} {match['where']}"
    if match := _SENTENCE.fullmatch(sentence):
        return match["between"], f"{match['between']} {match['other']}"
    return None


def _says(passage: Passage, between: str) -> bool:
    said = "You can find " if between == FOUND_IN else f" {between} "
    return said in passage.text


def from_articles(passages: Iterable[Passage], drawn: Draw) -> Iterator[Query]:
    """The title, and some key words of a sentence that are not in it."""
    for passage in passages:
        if (random := drawn(passage.id)) is None:
            continue
        titled = set(content_words(passage.title))
        sentences = [
            keys
            for sentence in ENDS.split(passage.text)
            if len(keys := [w for w in content_words(sentence) if w not in titled]) >= MIN_KEYS
        ]
        if sentences:
            few = _some(random.choice(sentences), random)
            text = random.choice(ABOUT_KEYS).format(keys=few)
            yield made_from(passage.title, text, passage.id, ARTICLES)


def _some(keys: list[str], random: Random) -> str:
    """A few, in their order."""
    kept = sorted(random.sample(range(len(keys)), min(len(keys), random.randint(2, 4))))
    return " ".join(keys[i] for i in kept)
