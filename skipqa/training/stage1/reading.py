"""What stands in a training prompt: the words of an image, and passages as retrieval brings them.

Enters: the words of every photo, the excerpts that retrieval finds for a question, passages that
are known to state the answer. Leaves: prompts. The reader meets passages that are right, beside the
point and misleading: those found, in their order; among them, more often than retrieval manages,
one that holds the answer, so that reading is learned at all; or none. Some say something else than
is true, and that is the answer then (`edits.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from skipqa.config import DecodeConfig
from skipqa.stages.prompts import trained_prompt
from skipqa.training.example import TrainExample
from skipqa.training.stage1.edits import OtherAnswers, edited, holds_answer
from skipqa.training.stage1.words import PROMPT, Words

GOLD = 0.8  # how often the passages include those that are known to state the answer
STATED = 0.4  # how often a sentence that supports the answer is one of them, though of no corpus
PROMOTED = 0.5  # how often a found passage that holds the answer is among those read
NAMED = 0.85  # how often what is asked about, if known, is the first word
EDITED = 0.3  # how often passages that state the answer state another one while training
SHUFFLED = 0.3  # how often the passages are in random order, not the best last
FEW = (1, 2, 2, 3, 4)  # passages that a sparse system reads
MANY = 16  # passages that a dense system reads
READ = DecodeConfig().max_passages  # passages that the shipped system reads
# "found" is as in answering, nothing promoted: for scoring alone. In "few", answers leak into what
# is read.
Form = Literal["few", "found", "unread", "blind", "many"]
# How often a question comes with the few passages of a sparse system, with none (at low resolution,
# as without retrieval), without the image too, and with a dense system's many. Those prompts are
# long, so they are rare: a dense system may have a reader of its own (`skipqa train reader --set
# many=1`).
FORMS: Mapping[Form, float] = {"few": 0.56, "unread": 0.36, "blind": 0.05, "many": 0.03}


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """Writes prompts: a question with words of its image and passages."""

    low_res: Words
    high_res: Words
    found: Mapping[int, Sequence[str]]  # excerpts by row, the best first; none where not looked for
    facts: Mapping[str, str]  # passages that state answers, by id; those of others are distractors
    write: Callable[[Sequence[str], Sequence[str], str], str] = trained_prompt
    read: int = READ  # passages of the form "found"
    asked: Mapping[int, str] = field(default_factory=dict)  # by row, the thing asked about
    many: float = FORMS["many"]  # how often a prompt has a dense system's passages

    def prompts(
        self, examples: Sequence[TrainExample], rows: Iterable[int], seed: int, form: Form
    ) -> list[str]:
        """Of those rows, empty elsewhere."""
        texts = [""] * len(examples)
        for row, facts, shown, _ in self._read(examples, rows, seed, form):
            texts[row] = self.write(facts, shown, examples[row].question)
        return texts

    def to_train_on(
        self, examples: Sequence[TrainExample], rows: Iterable[int], seed: int
    ) -> tuple[list[str], list[TrainExample]]:
        """Prompts in a form of their own each, and the examples: some have another answer."""
        rows, asked, texts = list(rows), list(examples), [""] * len(examples)
        others = OtherAnswers(examples[row] for row in rows)
        for row, facts, shown, draw in self._read(examples, rows, seed):
            example = examples[row]
            other = others.draw(example, draw) if draw.random() < EDITED else None
            if other is not None and (changed := edited(facts, example.answers, other)):
                facts, asked[row] = changed, replace(example, answers={other: 1.0})
            texts[row] = self.write(facts, shown, example.question)
        return texts, asked

    def _read(
        self,
        examples: Sequence[TrainExample],
        rows: Iterable[int],
        seed: int,
        form: Form | None = None,
    ) -> Iterator[tuple[int, list[str], list[str], random.Random]]:
        """Passages and words of each row, in one form, or each in a form of its own; and a draw
        that comes after theirs."""
        near, forms = HardNegatives(self.facts), mixed_forms(self.many)
        low_res, high_res = self.low_res.to("cpu"), self.high_res.to("cpu")
        for row in rows:
            example, draw = examples[row], random.Random(seed + row)
            kind = form or draw.choices(list(forms), list(forms.values()))[0]
            words = low_res if kind == "unread" else high_res
            facts = facts_shown(example, kind, self.found.get(row, ()), near, draw, self.read)
            shown = [] if kind == "blind" else words.written(example.photo)
            if row in self.asked and kind != "blind" and form in (None, "few"):
                shown = self._named(row, shown, draw)
            yield row, facts, shown, draw

    def _named(self, row: int, shown: list[str], draw: random.Random) -> list[str]:
        """As answering has the name of the most salient region first (`decode.region_words`)."""
        if draw.random() >= NAMED:
            return shown
        return list(dict.fromkeys((self.asked[row], *shown)))[: PROMPT.words]


def mixed_forms(many: float) -> dict[Form, float]:
    """How often each form is drawn, with so much of a dense system's."""
    scale = (1 - many) / (1 - FORMS["many"])
    return {form: many if form == "many" else scale * prob for form, prob in FORMS.items()}


def facts_shown(
    example: TrainExample,
    form: Form,
    found: Sequence[str],
    near: HardNegatives,
    draw: random.Random,
    read: int = READ,
) -> list[str]:
    """The passages of a prompt, the best last: what supports the answer, if it is to be there,
    after others that were found; where too little was, hard negatives."""
    if form in ("blind", "unread"):
        return []
    if form == "found":
        return list(reversed(found[:read]))
    gold = _supporting(example, found, draw)
    count = MANY if form == "many" else max(len(gold), draw.choice(FEW))
    others = [text for text in found if text not in gold]
    if example.hops:  # among passages about the same thing, and with the same relation of others
        others = _alternating(others, near.some(example, draw, count))
    facts = [*reversed(others[: count - len(gold)]), *gold]
    if form == "many" or draw.random() < SHUFFLED:
        draw.shuffle(facts)
    return facts


def _supporting(example: TrainExample, found: Sequence[str], draw: random.Random) -> list[str]:
    """One passage for each step to the answer, or none."""
    if example.hops:
        return [draw.choice(hop) for hop in example.hops] if draw.random() < GOLD else []
    if example.fact and draw.random() < STATED:
        return [example.fact]
    holding = [text for text in found if holds_answer(text, example.answers)]
    return [draw.choice(holding)] if holding and draw.random() < PROMOTED else []


def _alternating(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Each text once."""
    pairs = zip(one, other, strict=False)
    rest = (one if len(one) > len(other) else other)[min(len(one), len(other)) :]
    return list(dict.fromkeys([*(text for pair in pairs for text in pair), *rest]))


class HardNegatives:
    """Hard negatives: passages about the same thing, or with the same relation of others."""

    def __init__(self, facts: Mapping[str, str]) -> None:
        self.ids = sorted(facts)
        self.facts = facts
        self.places = {facts[id]: place for place, id in enumerate(self.ids)}
        self.alike: dict[str, list[str]] = {}
        for id in self.ids:
            self.alike.setdefault(self._says(id), []).append(id)

    def some(self, example: TrainExample, draw: random.Random, count: int) -> list[str]:
        right = {text for hop in example.hops for text in hop}
        found: list[str] = []
        for hop in example.hops[:1]:
            place = self.places.get(hop[0])
            if place is None:  # about an unseen entity: scored only
                continue
            near = [self.ids[i % len(self.ids)] for i in range(place - 3, place + 4)]
            alike = self.alike[self._says(self.ids[place])]
            found = [*near, *draw.sample(alike, min(len(alike), count))]
        if len(found) < count and self.ids:
            found += draw.choices(self.ids, k=count - len(found))
        texts = [self.facts[id] for id in dict.fromkeys(found)]
        return [text for text in draw.sample(texts, len(texts)) if text not in right][:count]

    @staticmethod
    def _says(id: str) -> str:
        return id.rpartition(":")[2]
