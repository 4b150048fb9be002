"""Questions about what photos show, made from the sentences of ConceptNet.

Enters: COCO's labels of the photos that may be trained on, and what is said of these labels.
Leaves: questions with their answers and the sentences that support them, as FVQA has them. "A stove
is used for cooking." is asked from what is said ("Which object in this image is used for
cooking?"), if nothing else in the photo is said to be so, or from the thing ("What is the stove in
this image used for?"). It sees no pixels: a photo shows what its labels say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import TypeVar

from skipqa.knowledge import Library
from skipqa.language import base_forms
from skipqa.tasks.okvqa import normalise
from skipqa.training.example import IN_FACT, TrainExample
from skipqa.training.retrieval.about import IN_IMAGE
from skipqa.training.retrieval.corpora import BY_PREDICATE, CONCEPTNET, FOUND_IN, OF_THING
from skipqa.training.stage1.mixture import Mixture
from skipqa.training.stage1.pocket_kb import HeldOut
from skipqa.training.stage1.statements import IS, Statement, Statements, read, title_of

COMMON = "common"  # the source of these questions
PER_PHOTO = 2  # questions
FROM_THING_EVERY = 3  # one question in so many starts from the thing
MAX_ANSWERS = 8  # of a question that starts from the thing
MAX_SAID_OF = 12  # what is said of more labels than that tells none from another

ANIMAL = "animal"
KIND_OF: Mapping[str, str] = {
    label: kind
    for kind, labels in {
        ANIMAL: "bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe",
        "vehicle": "bicycle, car, motorcycle, airplane, bus, train, truck, boat",
        "fruit": "banana, apple, orange",
        "vegetable": "broccoli, carrot",
        "food": "sandwich, hot dog, pizza, donut, cake",
        "piece of furniture": "bench, chair, couch, bed, dining table",
        "utensil": "fork, knife, spoon",
        "appliance": "microwave, oven, toaster, refrigerator, hair drier",
        "electronic device": "tv, laptop, mouse, remote, keyboard, cell phone",
        "piece of clothing": "tie",
        "bag": "backpack, handbag, suitcase",
        "container": "bottle, wine glass, cup, bowl, vase",
        "piece of sports equipment": "frisbee, skis, snowboard, sports ball, baseball bat, "
        "baseball glove, skateboard, surfboard, tennis racket",
    }.items()
    for label in labels.split(", ")
}
PLAIN = (
    *BY_PREDICATE,
    "Which object in this picture {said}?", "What object in this image {said}?",
    "Which thing here {said}?", "What in this image {said}?", "What in the photo {said}?",
)  # fmt: skip
BY_KIND = (
    "Which {kind} in this image {said}?", "What {kind} here {said}?",
    "What is the {kind} in this picture that {said}?", "Which {kind} in the photo {said}?",
)  # fmt: skip
# What stands between a thing and what is said of it -> how else people ask for the thing
BY_RELATION: Mapping[str, tuple[str, ...]] = {
    "is used for": (
        "What in this image would you use for {other}?",
        "Which object in this picture do people use for {other}?",
        "Which object here is good for {other}?",
    ),
    "can": (
        "Which object in this image is able to {other}?", "What in this picture could {other}?",
        "What do you see here that may {other}?",
    ),
    "has": ("Which object in this picture comes with {other}?", "What shown here has {other}?"),
    "is part of": ("Which object in this image belongs to {other}?",),
    "is made of": ("What in this picture is made from {other}?",),
    FOUND_IN: (
        "Which object in this image would you find {other}?",
        "What in this picture is often seen {other}?", "Which thing here could be {other}?",
    ),
    IS: ("What do you see in this picture that is {other}?",),
}  # fmt: skip
MENTIONS = (
    "the {name} in this image", "the {name} in this picture", "this {name}", "the {name} here",
)  # fmt: skip
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a label, of whichever photo."""

    question: str
    answers: tuple[str, ...]
    fact: str
    type: str  # where the answer is, as FVQA says it


def questions(
    mixed: Mixture, library: Library, held_out: HeldOut, most: int, seed: int
) -> list[TrainExample]:
    """At most `most`. The labels take turns, the rarest first; names of unseen entities are no
    answers. A library without ConceptNet gives none."""
    if not most:
        return []
    photos: defaultdict[str, list[int]] = defaultdict(list)
    for photo, shown in mixed.labels.items():
        for label in set(shown):
            photos[label].append(photo)
    statements = read(library, sorted(photos))
    labels = (x for x in statements.of_label if held_out.names.isdisjoint((x, title_of(x))))
    count: Counter[int] = Counter()  # of questions, by photo
    drawn = _in_turns(
        _about(
            QuestionWriter(label, statements, Random(f"{seed} {label}")),
            photos[label],
            mixed,
            count,
        )
        for label in sorted(labels, key=lambda label: (len(photos[label]), label))
    )
    names = {photo: name for (_, name), photo in mixed.photos.items()}
    return [
        TrainExample(
            f"{COMMON}:{number}",
            names[photo],
            asked.question,
            held_out.trainable(dict.fromkeys(asked.answers, 1.0)),
            category=CONCEPTNET,
            type=asked.type,
            split="train",
            source=COMMON,
            photo=photo,
            fact=asked.fact,
        )
        for number, (photo, asked) in enumerate(islice(drawn, most))
    ]


def _in_turns(each: Iterable[Iterator[T]]) -> Iterator[T]:
    """One of each in turn, until all have ended."""
    going = list(each)
    while going:
        ended = []
        for one in going:
            try:
                yield next(one)
            except StopIteration:
                ended.append(one)
        going = [one for one in going if one not in ended]


def _about(
    writer: QuestionWriter, photos: Sequence[int], mixed: Mixture, count: Counter[int]
) -> Iterator[tuple[int, Asked]]:
    """One question about the label for each photo that has no more than it may. `count` is that of
    all labels, as it stands when the next question is drawn."""
    taken = 0
    for photo in writer.random.sample(photos, len(photos)):
        others = frozenset(mixed.labels[photo]) - {writer.label}
        if count[photo] < PER_PHOTO and (asked := writer.ask(others, taken)) is not None:
            count[photo] += 1
            taken += 1
            yield photo, asked


class QuestionWriter:
    """Writes questions about one label."""

    def __init__(self, label: str, statements: Statements, random: Random) -> None:
        self.label, self.random = label, random
        self._said = statements.of_label[label]
        self._same_of = statements.same_of
        alike: defaultdict[str, list[Statement]] = defaultdict(list)
        for one in self._said:
            if one.between != IS:  # a kind, a quality or a state: "what is it?" asks for none
                alike[one.between].append(one)
        self._alike = {between: some[:MAX_ANSWERS] for between, some in alike.items()}

    def ask(self, others: frozenset[str], number: int) -> Asked | None:
        """Given the other labels of a photo; None where each predicate holds of one of them, too.
        By its number, a question is asked from the predicate or from the thing."""
        if self._alike and number % FROM_THING_EVERY == FROM_THING_EVERY - 1:
            return self._from_thing(others)
        return self._by_predicate(others)

    def _by_predicate(self, others: frozenset[str]) -> Asked | None:
        """The answer is the label, and what it is called in the sentence."""
        telling = [one for one in self._said if self._tells(one, others)]
        if not telling:
            return None
        (one,) = self.random.choices(telling, range(len(telling), 0, -1))  # the best more often
        title, kind = title_of(self.label), KIND_OF.get(self.label, "")
        wordings = [PLAIN, BY_RELATION.get(one.between, PLAIN)]
        if kind and not set(kind.split()) & set(one.predicate.split()):
            wordings.append(BY_KIND)
        wording = self.random.choice(self.random.choice(wordings))
        called = (self.label,) if title in base_forms(self.label) else (self.label, title)
        return Asked(
            wording.format(kind=kind, said=one.predicate, other=one.other),
            tuple(map(normalise, called)),
            one.sentence,
            IN_IMAGE,
        )

    def _tells(self, one: Statement, others: frozenset[str]) -> bool:
        same = self._same_of[one.predicate]
        return len(same) <= MAX_SAID_OF and same.isdisjoint(others)

    def _from_thing(self, others: frozenset[str]) -> Asked:
        """All that is said of it in that way is right, and stands in the fact."""
        between = self.random.choice(list(self._alike))
        some, kind = self._alike[between], KIND_OF.get(self.label, "")
        names = [title_of(self.label)]
        if kind and all(KIND_OF.get(other) != kind for other in others):
            names.append(kind)
        mention = self.random.choice(MENTIONS).format(name=self.random.choice(names))
        unsuitable = "kept" if kind == ANIMAL else "live"
        wordings = [one for one in OF_THING[between] if unsuitable not in one]
        return Asked(
            self.random.choice(wordings).format(it=mention),
            tuple(dict.fromkeys(one.answer for one in some)),
            " ".join(one.sentence for one in some),
            IN_FACT,
        )
