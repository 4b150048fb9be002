"""retrieve: every region sends its own query (RCSR, second half).

A trained phi turns a region's mean token and the question into a query, sparse (variant A) or, for
an index with embeddings, dense (B). Untrained, the query of region r is the names of its concepts
and, at a lower weight, their definitions, weighted by their probability, plus the question's terms.
A region that is certain of what it shows therefore scores its passages higher. A concept prior
turns the probabilities into the posterior over the region's concepts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from skipqa.backbones.backbone import Backbone
from skipqa.backbones.concepts import Concept, Concepts
from skipqa.config import RetrieveConfig
from skipqa.knowledge import Index
from skipqa.knowledge.vectors import sum_duplicates
from skipqa.nn import region_query as network
from skipqa.nn.region_query import DenseRegionQuery, SparseRegionQuery
from skipqa.stages.regions import posterior, region_means
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import (
    Hit,
    Question,
    Region,
    Retrieved,
    RetrievedPassage,
    SparseVector,
)


class RegionQuerier(Protocol):
    def __call__(self, state: State) -> tuple[list[list[Hit]], int]:
        """The hits of every region's query, and the FLOPs of writing the queries."""


class ConceptQuerier:
    """Training-free: names and definitions of the region's concepts, and the question's terms."""

    def __init__(self, config: RetrieveConfig, backbone: Backbone, index: Index) -> None:
        self.config, self.backbone, self.index = config, backbone, index

    def __call__(self, state: State) -> tuple[list[list[Hit]], int]:
        queries, flops = self.queries(state)
        return self.index.search(queries, self.config.per_region), flops

    def queries(self, state: State) -> tuple[list[SparseVector], int]:
        encoder, question = self.index.encoder, state.question
        # Regions of one image share the question and most concepts: each text is encoded once.
        encode = functools.cache(encoder.encode_terms)
        if encoder.encodes_whole_questions:
            asked, flops = encoder.encode_query(question.text), encoder.query_flops(question.text)
        else:
            asked, flops = encode(" ".join(question.words)), 0
        concepts, config = self.backbone.concepts, self.config
        return [
            weighted_sum(
                [
                    (config.question_weight, asked),
                    *concept_terms(region, question, concepts, encode, config.definition_weight),
                ]
            )
            for region in state.regions
        ], flops


class SparseQuerier:
    """Variant A: phi writes a sparse query for each region."""

    def __init__(self, query: SparseRegionQuery, index: Index, per_region: int) -> None:
        self.query, self.index, self.per_region = query, index, per_region

    @torch.inference_mode()
    def __call__(self, state: State) -> tuple[list[list[Hit]], int]:
        weights = self.query(region_means(state), state.question.embedding)
        hits = self.index.search(self.query.queries(weights), self.per_region)
        return hits, network.flops(self.query.config, len(state.regions))


class DenseQuerier:
    """Variant B: phi also sees the region's box and writes an embedding."""

    def __init__(self, query: DenseRegionQuery, index: Index, per_region: int) -> None:
        self.query, self.index, self.per_region = query, index, per_region

    @torch.inference_mode()
    def __call__(self, state: State) -> tuple[list[list[Hit]], int]:
        boxes = torch.tensor([region.box for region in state.regions])
        vectors = self.query(region_means(state), state.question.embedding, boxes)
        hits = self.index.search_dense(vectors.numpy(), self.per_region)
        return hits, network.flops(self.query.config, len(state.regions))


class Retrieve:
    def __init__(self, querier: RegionQuerier, index: Index) -> None:
        self.querier, self.index = querier, index

    def __call__(self, state: State, record: StageRecord) -> State:
        if state.budget.passages == 0:
            record.kept, record.dropped = 0, 0
            record.why = "no retrieval for this question"
            return state.add(retrieved=Retrieved((), 0, 0))
        hits, record.flops = self.querier(state)
        unique = best_hits(hits)
        passages = tuple(
            RetrievedPassage(hit.row, self.index.passage(hit.row), hit.score, region)
            for hit, region in unique[: state.budget.passages]
        )
        num_hits = sum(map(len, hits))
        record.kept, record.dropped = len(passages), num_hits - len(passages)
        record.why = (
            f"{len(state.regions)} queries, {num_hits} hits, {len(unique)} unique "
            f"of {len(self.index):,}"
        )
        return state.add(retrieved=Retrieved(passages, num_hits, len(unique)))


def build(parts: Parts) -> Retrieve:
    config, index, query = parts.config.retrieve, parts.index, parts.components.region_query
    querier: RegionQuerier
    if query is None:
        querier = ConceptQuerier(config, parts.backbone, index)
    elif isinstance(query, SparseRegionQuery):
        querier = SparseQuerier(query, index, config.per_region)
    else:
        querier = DenseQuerier(query, index, config.per_region)
    return Retrieve(querier, index)


def best_hits(hits: Sequence[Sequence[Hit]]) -> list[tuple[Hit, int]]:
    """Union over regions: each passage once, with its best score and the region that gave it.

    Ordered by score, then row; on equal scores the earlier region has the passage.
    """
    best: dict[int, tuple[Hit, int]] = {}
    for region, found in enumerate(hits):
        for hit in found:
            if hit.row not in best or hit.score > best[hit.row][0].score:
                best[hit.row] = (hit, region)
    return sorted(best.values(), key=lambda pair: (-pair[0].score, pair[0].row))


def concept_terms(
    region: Region,
    question: Question,
    concepts: Concepts,
    encode: Callable[[str], SparseVector],
    definition_weight: float,
) -> list[tuple[float, SparseVector]]:
    """The weighted terms of what the region shows."""
    shown = region.concepts
    if question.concept_prior is not None:
        shown = tuple(posterior(region, question.concept_prior.weights).items())
    parts = []
    for concept, prob in shown:
        names, definition = _describe(concepts[concept])
        parts.append((prob, encode(names)))
        parts.append((prob * definition_weight, encode(definition)))
    return parts


def _describe(concept: Concept) -> tuple[str, str]:
    """Names, and the definition without its examples. A flag is looked up as its country."""
    if concept.kinds and "flag" in concept.kinds[0]:
        return concept.names[-1], ""
    return " ".join(concept.names), concept.gloss.partition(' "')[0].partition(';"')[0]


def weighted_sum(parts: Sequence[tuple[float, SparseVector]]) -> SparseVector:
    terms = np.concatenate([vector.terms for _, vector in parts])
    weights = np.concatenate([np.float32(factor) * vector.weights for factor, vector in parts])
    return sum_duplicates(terms, weights)
