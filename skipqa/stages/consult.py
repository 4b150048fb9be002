"""consult: ask other sources about named things that the corpus lacks (SKIP-ADR).

A thing that the image may show, or that the question names, is unknown if too few passages of the
library are titled with one of its names. Only then other sources are asked, and for no longer than
a deadline (`knowledge/on_demand/`). What they tell joins what was retrieved as if it were one more
index: scored by the same queries, compared by relative score, and the best K' of all stay. From
here on nobody treats these passages differently; each knows its origin. Without a source the stage
does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from skipqa.backbones.backbone import Backbone
from skipqa.config import RetrieveConfig
from skipqa.knowledge import Library
from skipqa.knowledge.library import SMALLEST
from skipqa.knowledge.on_demand import Asked, Told
from skipqa.knowledge.text_query import encode_queries
from skipqa.stages.names import NamedThing, named_in, shown_things
from skipqa.stages.retrieve import ConceptQuerier, by_saliency
from skipqa.stages.stage import Parts, Stage
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import Consulted, Hit, Retrieved, RetrievedPassage, SparseVector

NOTHING = Consulted()
ELSEWHERE = -1  # the row of a passage that no index of the library holds


class QueryScorer:
    """Scores what was told by the queries that the regions sent to the first index."""

    def __init__(self, library: Library, config: RetrieveConfig, backbone: Backbone) -> None:
        self.library, self.config = library, config
        self.write = ConceptQuerier(config, backbone).write

    def __call__(self, state: State, told: Sequence[Told]) -> tuple[list[RetrievedPassage], int]:
        """The best first, each relative to the best of them; and the FLOPs spent."""
        skipped = dict.fromkeys(state.budget.skipped_indexes, 0.0)
        searched = self.library.searched(skipped) or self.library.searched({})
        encoder = searched[0].index.encoder
        queries, flops = state.retrieved.queries, 0
        if not queries:  # dense ones say nothing of words
            (written,), flops = encode_queries(self.write(state), [encoder])
            queries = tuple(written)
        rows = encoder.encode_passages([one.passage for one in told])
        hits = [[[Hit(j, inner(query, rows[j])) for j in range(len(rows))] for query in queries]]
        by_region = by_saliency(hits, state.regions, self.config.region_sharpness)[0]
        found = []
        for j, (passage, origin) in enumerate(told):
            score, region = max((of[j].score, -r) for r, of in enumerate(by_region))
            found.append(RetrievedPassage(ELSEWHERE, passage, score, -region, score, origin=origin))
        own = max(SMALLEST, *(one.score for one in found))
        scored = [replace(one, relative=max(one.score, SMALLEST) / own) for one in found]
        return sorted(scored, key=lambda one: -one.score), flops


class Consult:
    def __init__(self, parts: Parts, scorer: QueryScorer) -> None:
        self.sources, self.library, self.scorer = parts.sources, parts.library, scorer
        self.concepts, self.config = parts.backbone.concepts, parts.config.consult
        self.sharpness = parts.config.retrieve.index_sharpness

    def __call__(self, state: State, record: StageRecord) -> State:
        record.kept, record.dropped = 0, 0
        if state.budget.passages == 0:
            record.why = "no retrieval for this question"
            return state.add(consulted=NOTHING)
        things = self.named(state)
        unknown = [thing for thing in things if self.is_unknown(thing)][: self.config.names]
        consulted = Consulted(
            tuple(thing.names[0] for thing in things), tuple(thing.names[0] for thing in unknown)
        )
        if not unknown:
            record.why = f"{len(things)} names, all known"
            return state.add(consulted=consulted)
        asked = self.sources.ask(consulted.unknown, self.config.deadline_ms / 1_000)
        told = _unique(one for name in consulted.unknown for one in asked.told.get(name, ()))
        scored, record.flops = self.scorer(state, told) if told else ([], 0)
        retrieved = joined(state.retrieved, scored, self.sharpness, state.budget.passages)
        record.kept = sum(one.origin is not None for one in retrieved.passages)
        record.dropped = len(scored) - record.kept
        record.why = _why(consulted, asked, len(scored))
        consulted = replace(
            consulted,
            told=tuple(scored),
            late=tuple(dict.fromkeys(asked.late)),
            warnings=tuple(asked.warnings),
        )
        return state.add(retrieved=retrieved, consulted=consulted)

    def named(self, state: State) -> list[NamedThing]:
        """What the question names, then what the image may show."""
        passages = self.library.coverage.passages
        named = named_in(state.text, lambda title: passages(title) > 0)
        shown = shown_things(state, self.concepts, self.config.min_prob)
        return [*(NamedThing((name,), 1.0) for name in named), *shown]

    def is_unknown(self, thing: NamedThing) -> bool:
        return self.library.coverage.of_thing(thing.names) < self.config.covered


class Alone:
    """No source: nothing is asked."""

    def __call__(self, state: State, record: StageRecord) -> State:
        record.why = "no source to ask"
        return state.add(retrieved=state.retrieved, consulted=NOTHING)  # it stays as it is


def build(parts: Parts) -> Stage:
    if not parts.sources:
        return Alone()
    scorer = QueryScorer(parts.library, parts.config.retrieve, parts.backbone)
    return Consult(parts, scorer)


def joined(
    retrieved: Retrieved, told: Sequence[RetrievedPassage], sharpness: float, most: int
) -> Retrieved:
    """One list, as `knowledge.library.merge` makes it of several indexes: what was told counts by
    its score relative to the best of it, times that best one relative to the best of all."""
    if not told:
        return retrieved
    own = max(SMALLEST, *(one.score for one in told))
    before = max((one.score for one in retrieved.passages), default=SMALLEST)
    best = max(own, before)
    every = [
        replace(one, relative=one.relative * (of_source / best) ** sharpness)
        for of_source, some in ((before, retrieved.passages), (own, told))
        for one in some
    ]
    ranked = sorted(every, key=lambda one: -one.relative)
    return replace(retrieved, passages=tuple(ranked[:most]))


def inner(query: SparseVector, passage: SparseVector) -> float:
    """Both have ascending unique terms."""
    _, of_query, of_passage = np.intersect1d(
        query.terms, passage.terms, assume_unique=True, return_indices=True
    )
    return float(query.weights[of_query] @ passage.weights[of_passage])


def _unique(told: Iterable[Told]) -> list[Told]:
    """Two names may lead to one thing."""
    return list({one.passage.id: one for one in told}.values())


def _why(consulted: Consulted, asked: Asked, num_told: int) -> str:
    parts = [
        f"{len(consulted.unknown)} of {len(consulted.names)} names unknown: "
        + ", ".join(consulted.unknown),
        f"{num_told} passages told, {asked.cached} answers cached, {asked.fetched} fetched",
    ]
    if asked.late:
        parts.append(f"late: {', '.join(dict.fromkeys(asked.late))}")
    return "; ".join([*parts, *asked.warnings])
