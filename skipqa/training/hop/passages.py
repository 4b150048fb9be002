"""Where passages name a bridge: what the pointer learns from.

Enters: first steps (`questions.py`), a library, the text encoder. Leaves: for each (words that ask,
passage) the states of the passage's tokens and the spans of it that are right, none where it names
no bridge. Passages are those that a search by the entity's name brings, and the gold ones. Another
entity's passage may well name its own country: it is used only where it names a right one, or no
bridge that is known at all.

Shapes: L tokens of a passage, d text width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from skipqa.backbones.backbone import Backbone
from skipqa.data.pocket_kb.text import plain, says
from skipqa.language import content_words
from skipqa.pipeline import Pipeline
from skipqa.stages.hop import BridgeQuerier
from skipqa.stages.regions import EVERYWHERE
from skipqa.stages.retrieve import Retrieve
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.training.hop.questions import TwoStep
from skipqa.training.run import Counted
from skipqa.types import Budget, Question, RetrievedPassage

FOUND = 6  # passages of a search
BATCH = 32


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text: its embedding, and its tokens with the characters of each."""

    embedding_d: Tensor
    states_Ld: Tensor
    characters: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PointedAt:
    """A passage that is asked for a bridge."""

    phrase: str
    text: str
    title: str
    spans: tuple[tuple[int, int], ...]  # characters; none: it names no bridge
    held_out: bool


def pointed_at(steps: Sequence[TwoStep], pipeline: Pipeline, counted: Counted) -> list[PointedAt]:
    """Every step with every passage that its entity brings."""
    known = {name for step in steps for name in step.names}
    brought: dict[tuple[str, tuple[str, ...]], list[RetrievedPassage]] = {}
    keys = list(dict.fromkeys((step.entity, step.gold) for step in steps))
    by_key = {(step.entity, step.gold): step for step in steps}
    for done, key in enumerate(keys, 1):
        brought[key] = [*_search(by_key[key], pipeline)]
        counted(done, len(keys))
    found: dict[tuple[str, str], PointedAt] = {}
    for step in steps:
        for passage in brought[step.entity, step.gold]:
            spans = tuple(places(passage.text, step.names))
            own = passage.passage.title.lower() == step.name.lower()
            if spans or own or not says(passage.text, known):
                found[step.phrase, passage.text] = PointedAt(
                    step.phrase, passage.text, passage.passage.title, spans, step.held_out
                )
    return list(found.values())


def _search(step: TwoStep, pipeline: Pipeline) -> Iterator[RetrievedPassage]:
    """What a search by the name brings, as it is read, and gold passages that it misses."""
    encoded = pipeline.backbone.encode_texts([step.phrase])
    question = Question(
        step.phrase, encoded.embeddings[0], content_words(step.phrase), encoded.states[0]
    )
    config, library = pipeline.config.retrieve, pipeline.library
    querier = BridgeQuerier(step.name, 1.0, config.question_weight, config.per_region)
    asking = State(None, step.phrase).add(
        question=question, regions=(EVERYWHERE,), budget=Budget(0, FOUND)
    )
    retrieve = Retrieve(querier, library, config)
    found = retrieve(asking, StageRecord("retrieve")).retrieved.passages
    yield from found
    for id in set(step.gold) - {one.passage.id for one in found}:
        if (row := library.row_of(id)) is not None:
            yield RetrievedPassage(row, library.passage(row), 0.0, 0, 0.0)


def places(text: str, names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where the text has one of the names, in plain form, as whole words; of two at a
    place the longer."""
    taken: set[int] = set()
    for name in sorted(names, key=len, reverse=True):
        words = r"[\W_]+".join(map(re.escape, name.split()))
        for match in re.finditer(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE):
            if plain(match[0]) == name and taken.isdisjoint(range(*match.span())):
                taken.update(range(*match.span()))
                yield match.span()


def encode(texts: Sequence[str], backbone: Backbone, counted: Counted) -> Mapping[str, Encoded]:
    """Each once, short ones together."""
    different = sorted(set(texts), key=lambda text: (len(text), text))
    found: dict[str, Encoded] = {}
    for start in range(0, len(different), BATCH):
        some = different[start : start + BATCH]
        encoded = backbone.encode_texts(some)
        for place, text in enumerate(some):
            found[text] = Encoded(
                encoded.embeddings[place], encoded.states[place], encoded.characters[place]
            )
        counted(len(found), len(different))
    return found
