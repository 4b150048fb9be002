"""retrieve: every region asks its own query (RCSR, second half).

A trained phi turns a region's mean token and the question into a query, sparse (variant A) or,
for an index with embeddings, dense (B). Without one, the query of region r is the region's
concepts, each as its names and, lighter, its definition, weighted by their share of the
region's evidence, plus the question's terms. A region that is sure of what it shows therefore
scores its passages higher than one that is not. A trained expectation weighs the concepts by what
the question is about: then they share a whole among them, as nothing else in the region counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from skipqa.backbones.concepts import Concept, Concepts
from skipqa.config import RetrieveConfig
from skipqa.knowledge import Index
from skipqa.knowledge.vectors import sum_duplicates
from skipqa.nn import region_query as phi
from skipqa.nn.region_query import DenseRegionQuery, SparseRegionQuery
from skipqa.stages.regions import posterior
from skipqa.trace import StageRecord
from skipqa.types import (
    Budget,
    Hit,
    Question,
    Region,
    Retrieved,
    RetrievedPassage,
    SparseVector,
    VisualTokens,
)


def retrieve(
    regions: Sequence[Region],
    question: Question,
    allowed: Budget,
    concepts: Concepts,
    index: Index,
    config: RetrieveConfig,
    record: StageRecord,
    learned: SparseRegionQuery | DenseRegionQuery | None = None,
    tokens: VisualTokens | None = None,
) -> Retrieved:
    if allowed.passages == 0:
        record.kept, record.dropped = 0, 0
        record.why = "no retrieval for this question"
        record.result = Retrieved((), 0, 0)
        return record.result
    if learned is None:
        # Regions of one picture share the question and most concepts: each text is encoded once.
        encode = functools.cache(index.encoder.encode_terms)
        asked = None
        if index.encoder.encodes_whole_questions:
            asked = index.encoder.encode_query(question.text)
            record.flops = index.encoder.query_flops(question.text)
        queries = [
            region_query(region, question, concepts, encode, config, asked) for region in regions
        ]
        hits = index.search(queries, config.per_region)
    else:
        assert tokens is not None
        hits = _ask(learned, regions, tokens, question, index, config.per_region)
        record.flops = phi.flops(learned.config, len(regions))
    unique = best_hits(hits)
    kept = tuple(
        RetrievedPassage(hit.row, index.passage(hit.row), hit.score, region)
        for hit, region in unique[: allowed.passages]
    )
    num_hits = sum(map(len, hits))
    record.kept, record.dropped = len(kept), num_hits - len(kept)
    record.why = f"{len(regions)} queries, {num_hits} hits, {len(unique)} unique of {len(index):,}"
    record.result = Retrieved(kept, num_hits, len(unique))
    return record.result


@torch.inference_mode()
def _ask(
    learned: SparseRegionQuery | DenseRegionQuery,
    regions: Sequence[Region],
    tokens: VisualTokens,
    question: Question,
    index: Index,
    k: int,
) -> list[list[Hit]]:
    centres = torch.stack([tokens.meaning[list(region.members)].mean(0) for region in regions])
    if isinstance(learned, SparseRegionQuery):
        return index.search(learned.queries(learned(centres, question.embedding)), k)
    boxes = torch.tensor([region.box for region in regions])
    return index.search_dense(learned(centres, question.embedding, boxes).numpy(), k)


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


def region_query(
    region: Region,
    question: Question,
    concepts: Concepts,
    encode: Callable[[str], SparseVector],
    config: RetrieveConfig,
    asked: SparseVector | None = None,
) -> SparseVector:
    """`asked` is the question where an encoder understood it."""
    words = encode(" ".join(question.words)) if asked is None else asked
    parts = [(config.question_weight, words)]
    shown = region.concepts
    if question.concept_prior is not None:
        shown = tuple(posterior(region, question.concept_prior.weights).items())
    for concept, prob in shown:
        names, definition = _describe(concepts[concept])
        parts.append((prob, encode(names)))
        parts.append((prob * config.definition_weight, encode(definition)))
    return weighted_sum(parts)


def _describe(concept: Concept) -> tuple[str, str]:
    """Names, and the definition without its examples. A flag is looked up as its country."""
    if concept.kinds and "flag" in concept.kinds[0]:
        return concept.names[-1], ""
    return " ".join(concept.names), concept.gloss.partition(' "')[0].partition(';"')[0]


def weighted_sum(parts: Sequence[tuple[float, SparseVector]]) -> SparseVector:
    terms = np.concatenate([vector.terms for _, vector in parts])
    weights = np.concatenate([np.float32(factor) * vector.weights for factor, vector in parts])
    return sum_duplicates(terms, weights)
