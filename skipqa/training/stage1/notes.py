"""Questions that only somebody's own notes answer: made-up facts about things that photos show.

Enters: COCO's labels of the photos that may be trained on. Leaves: questions, each with the note
that answers it. Nobody could know who gave us a dog, so the reader learns to read it off, and to
copy a name that it never saw letter by letter. Names, places and numbers are drawn anew for every
note. It sees no pixels: a photo shows what its labels say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from random import Random

from skipqa.training.example import TrainExample
from skipqa.training.stage1.mixture import Mixture

NOTES = "notes"  # their category
_ONSETS = "b br c ch d dr f g gr h j k kr l m n ny p qu r rh s sh st sz t th tr v w y z".split()
_VOWELS = "a a a e e e i i o o u ae ai ei ia ie io oa ou á é í ö ü å".split()
_ENDS = ["", "", "", "n", "s", "r", "l", "m", "k", "sk", "nt", "rd", "x"]
_MONTHS = (
    "January February March April May June July August September October November December".split()
)
_CURRENCIES = ("euros", "dollars", "crowns", "pounds", "rupees", "yen", "francs", "pesos")
_MAKES = ("workshop", "works", "& Sons", "Brothers", "factory")
# A sentence, and what it answers; {thing} is what the photo shows, other words are drawn
Template = tuple[str, Mapping[str, str]]
TEMPLATES: tuple[Template, ...] = (
    (
        "The {thing} was given to us by {person} in {year}.",
        {"Who gave us this {thing}?": "{person}", "When did we get this {thing}?": "{year}"},
    ),
    (
        "This {thing} belongs to {person}, who lives in {place}.",
        {"Whose {thing} is this?": "{person}", "Who owns this {thing}?": "{person}"},
    ),
    (
        "{person} bought the {thing} in {place} for {amount} {currency}.",
        {
            "Who bought this {thing}?": "{person}",
            "Where was this {thing} bought?": "{place}",
            "How much did this {thing} cost?": "{amount} {currency}",
        },
    ),
    (
        "Our {thing} is called {name}; {person} looks after it.",
        {
            "What is this {thing} called?": "{name}",
            "What is the name of this {thing}?": "{name}",
            "Who looks after this {thing}?": "{person}",
        },
    ),
    (
        "The {thing} in the photo was made by {maker} in {place}, number {code}.",
        {
            "Who made this {thing}?": "{maker}",
            "Where was this {thing} made?": "{place}",
            "Which number does this {thing} have?": "{code}",
        },
    ),
    (
        "{person} took this picture of a {thing} near {place} on {day} {month} {year}.",
        {
            "Who took this picture?": "{person}",
            "Where was this picture of a {thing} taken?": "{place}",
            "When was this photo of a {thing} taken?": "{day} {month} {year}",
        },
    ),
    (
        "On Sundays {person} and {friend} come to see the {thing}; the key is in {room}.",
        {
            "Who comes to see this {thing} on Sundays?": "{person} and {friend}",
            "Where is the key for this {thing}?": "{room}",
        },
    ),
    (
        "The {thing} won the {name} prize at {place} in {year}.",
        {
            "Which prize did this {thing} win?": "{name} prize",
            "Where did this {thing} win a prize?": "{place}",
            "In which year did this {thing} win a prize?": "{year}",
        },
    ),
)
_ROOMS = ("the blue drawer", "the hall cupboard", "the tin box", "the workshop", "room {code}")


def questions(mixed: Mixture, source: str, most: int, seed: int) -> list[TrainExample]:
    """At most `most`. The labels take turns, the rarest first."""
    photos: defaultdict[str, list[int]] = defaultdict(list)
    for photo, shown in mixed.labels.items():
        for label in set(shown):
            photos[label].append(photo)
    names = {photo: name for (_, name), photo in mixed.photos.items()}
    draw = Random(f"{NOTES} {seed}")
    found: list[TrainExample] = []
    for label, photo in islice(_in_turns(photos, draw), most):
        note, question, answer = write(label, draw)
        found.append(
            TrainExample(
                f"{NOTES}:{len(found)}",
                names[photo],
                question,
                {answer.lower(): 1.0},  # letter by letter, not normalised
                category=NOTES,
                split="train",
                source=source,
                photo=photo,
                hops=((note,),),
            )
        )
    return found


def _in_turns(photos: Mapping[str, Sequence[int]], draw: Random) -> Iterator[tuple[str, int]]:
    """A photo of each label in turn, until all were drawn."""
    rarest_first = sorted(photos, key=lambda label: (len(photos[label]), label))
    drawn = [
        [(label, photo) for photo in draw.sample(photos[label], len(photos[label]))]
        for label in rarest_first
    ]
    for turn in zip_longest(*drawn):
        yield from filter(None, turn)


def write(thing: str, draw: Random) -> tuple[str, str, str]:
    """A note, a question that it answers, and the answer as it stands there. Most notes say more of
    the thing than what is asked, with other people and places in it: which of them answers has to
    be read."""
    asked, *beside = draw.sample(TEMPLATES, draw.choice((1, 2, 2, 3)))
    told, question, answer = _fact(thing, asked, draw)
    sentences = [told, *(_fact(thing, template, draw)[0] for template in beside)]
    draw.shuffle(sentences)
    return " ".join(sentences), question, answer


def _fact(thing: str, template: Template, draw: Random) -> tuple[str, str, str]:
    """A sentence, a question that it answers, and the answer as it stands there."""
    note, answered = template
    code = f"{draw.choice('ABCDEFGHKLMNPRSTVX')}{draw.randrange(10, 9_999)}"
    said = {
        "thing": thing,
        "person": person(draw),
        "friend": _word(draw, 2),
        "name": _word(draw, draw.choice((1, 2, 2, 3))),
        "maker": f"{_word(draw, 2)} {draw.choice(_MAKES)}",
        "place": _word(draw, draw.choice((2, 3))),
        "year": str(draw.randrange(1890, 2027)),
        "day": str(draw.randrange(1, 29)),
        "month": draw.choice(_MONTHS),
        "amount": f"{draw.randrange(3, 9_000):,}",
        "currency": draw.choice(_CURRENCIES),
        "code": code,
        "room": draw.choice(_ROOMS).format(code=code),
    }
    question = draw.choice(list(answered))
    texts = (note, question, answered[question])
    written, asked, answer = (text.format(**said) for text in texts)
    return written[0].upper() + written[1:], asked, answer


def person(draw: Random) -> str:
    """A given name and a family name, some of them double."""
    family = _word(draw, draw.choice((2, 2, 3)))
    if draw.random() < 0.15:
        family += f"-{_word(draw, 2)}"
    return f"{_word(draw, draw.choice((2, 2, 3)))} {family}"


def _word(draw: Random, syllables: int) -> str:
    made = "".join(draw.choice(_ONSETS) + draw.choice(_VOWELS) for _ in range(syllables))
    return (made + draw.choice(_ENDS)).capitalize()
