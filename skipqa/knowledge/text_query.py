"""Queries in words: written once, encoded by every index that is asked.

Enters: a question and weighted texts, and the encoders of some indexes. Leaves: a sparse vector of
each query for each encoder, because indexes differ in how frequent a term is and may differ in
their encoder. It knows neither images nor indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from skipqa.knowledge.sparse_encoder import SparseEncoder
from skipqa.knowledge.vectors import sum_duplicates
from skipqa.types import SparseVector


@dataclass(frozen=True, slots=True)
class TextQuery:
    question: str  # as it was asked
    keywords: str  # its content words, for an encoder without a network
    question_weight: float
    texts: tuple[tuple[float, str], ...]  # (weight, words that are matched literally)


def encode_queries(
    queries: Sequence[TextQuery], encoders: Sequence[SparseEncoder]
) -> tuple[list[list[SparseVector]], int]:
    """The vectors of all queries for each encoder, and the FLOPs of the networks. One that several
    encoders share runs once for all of them."""
    encoded = [_encode(queries, encoder) for encoder in encoders]
    for encoder in encoders:
        encoder.forget_question()
    networks = {id(encoder.network): encoder for encoder in encoders}
    return encoded, sum(_flops(queries, encoder) for encoder in networks.values())


def _encode(queries: Sequence[TextQuery], encoder: SparseEncoder) -> list[SparseVector]:
    # Queries about one image share the question and most texts: each is encoded once.
    terms, whole = cache(encoder.encode_terms), cache(encoder.encode_query)

    def encode(query: TextQuery) -> SparseVector:
        by_network = encoder.encodes_whole_questions
        asked = whole(query.question) if by_network else terms(query.keywords)
        texts = [(weight, terms(text)) for weight, text in query.texts]
        return weighted_sum([(query.question_weight, asked), *texts])

    return [encode(query) for query in queries]


def _flops(queries: Sequence[TextQuery], encoder: SparseEncoder) -> int:
    if not encoder.encodes_whole_questions:
        return 0
    return sum(encoder.query_flops(question) for question in {q.question for q in queries})


def weighted_sum(parts: Sequence[tuple[float, SparseVector]]) -> SparseVector:
    terms = np.concatenate([vector.terms for _, vector in parts])
    weights = np.concatenate([np.float32(factor) * vector.weights for factor, vector in parts])
    return sum_duplicates(terms, weights)
