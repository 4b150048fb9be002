"""Queries in words: written once, encoded by every index that is asked.

Enters: a question and weighted texts, and the encoders of some indexes. Leaves: a sparse vector of
each query for each encoder, because indexes differ in how frequent a term is and may differ in
their encoder; all on one scale, so that scores of different indexes can be compared. It knows
neither images nor indexes.
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
    """The vectors of all queries for each encoder, of the `same_length`, and the FLOPs of the
    networks. One that several encoders share runs once for all of them."""
    encoded = [_encode(queries, encoder) for encoder in encoders]
    for encoder in encoders:
        encoder.forget_question()
    networks = {id(encoder.network): encoder for encoder in encoders}
    return same_length(encoded), sum(_flops(queries, encoder) for encoder in networks.values())


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


def same_length(encoded: Sequence[Sequence[SparseVector]]) -> list[list[SparseVector]]:
    """The queries of each encoder times one factor, so that its longest is as long as the first
    encoder's. In a small index every term is frequent, so its idf, and with it every score, is
    low: what is compared is how much of the query a passage holds. The first is not changed.
    """
    longest = [
        max((float(np.linalg.norm(query.weights)) for query in queries), default=0.0)
        for queries in encoded
    ]
    length = next((norm for norm in longest if norm > 0), 1.0)
    return [
        [SparseVector(q.terms, q.weights * np.float32(length / (norm or length))) for q in queries]
        for queries, norm in zip(encoded, longest, strict=True)
    ]


def weighted_sum(parts: Sequence[tuple[float, SparseVector]]) -> SparseVector:
    terms = np.concatenate([vector.terms for _, vector in parts])
    weights = np.concatenate([np.float32(factor) * vector.weights for factor, vector in parts])
    return sum_duplicates(terms, weights)
