"""Queries in words: every encoder makes its own vectors of them, and a shared network runs once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.text_query import TextQuery, encode_queries, same_length, weighted_sum
from skipqa.knowledge.trained_query import QueryNetwork, TrainedQueryEncoder
from skipqa.knowledge.vectors import NUM_TERMS
from skipqa.types import SparseVector

sparse = st.dictionaries(st.integers(0, 15), st.floats(0.0625, 10, width=32), max_size=6).map(
    lambda weights: SparseVector(
        np.array(sorted(weights), dtype=np.int32),
        np.array([weights[term] for term in sorted(weights)], dtype=np.float32),
    )
)


def dense(vector: SparseVector) -> np.ndarray:
    out = np.zeros(16)
    out[vector.terms] = vector.weights
    return out


@given(st.lists(st.tuples(st.floats(0, 3), sparse), min_size=1, max_size=6))
def test_weighted_sum_equals_a_dense_sum(parts: list[tuple[float, SparseVector]]) -> None:
    summed = weighted_sum(parts)
    expected = sum(factor * dense(vector) for factor, vector in parts)
    np.testing.assert_allclose(dense(summed), expected, rtol=1e-5, atol=1e-6)
    assert summed.terms.dtype == np.int32
    assert summed.weights.dtype == np.float32
    assert (np.diff(summed.terms) > 0).all()
    assert (summed.weights > 0).all()


class CountedNetwork(QueryNetwork):
    """Doubles every term of the question, and counts how often it runs."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.runs = 0

    def _run(self, pieces: tuple[int, ...], vocabulary: Any) -> Any:
        self.runs += 1
        factors = np.zeros(NUM_TERMS, np.float32)
        terms = vocabulary.matched_as[list(pieces)]
        factors[terms[terms >= 0]] = 2.0
        return factors

    def flops(self, num_pieces: int) -> int:
        return 1_000 * num_pieces


@cache
def lexical() -> LexicalEncoder:
    return LexicalEncoder.default()


def observed(encoder: LexicalEncoder, seed: int) -> LexicalEncoder:
    frequency = np.random.default_rng(seed).integers(1, 500, NUM_TERMS)
    encoder.observe(frequency, 1_000)
    return encoder


QUERIES = [
    TextQuery("Which dog eats fish?", "dog eats fish", 0.5, ((0.6, "espresso"), (0.1, "a coffee"))),
    TextQuery("Which dog eats fish?", "dog eats fish", 0.5, ((0.3, "cup"), (0.6, "espresso"))),
]


def test_each_encoder_has_its_own_idf() -> None:
    one, two = (observed(LexicalEncoder(lexical().vocabulary), seed) for seed in (0, 1))
    encoded, flops = encode_queries(QUERIES, [one, two])
    assert flops == 0
    for encoder, vectors in zip((one, two), encoded, strict=True):
        for query, vector in zip(QUERIES, vectors, strict=True):
            expected = weighted_sum(
                [
                    (query.question_weight, encoder.encode_terms(query.keywords)),
                    *((weight, encoder.encode_terms(text)) for weight, text in query.texts),
                ]
            )
            assert vector.terms.tolist() == expected.terms.tolist()
            ratios = vector.weights / expected.weights
            np.testing.assert_allclose(ratios, ratios[0], rtol=1e-6)
            assert encoder is two or set(ratios) == {1.0}  # the first stays as it is
    assert encoded[0][0].weights.tolist() != encoded[1][0].weights.tolist()


@given(st.lists(st.lists(sparse, max_size=4), max_size=4))
def test_the_longest_query_is_equally_long_for_each_encoder(
    encoded: list[list[SparseVector]],
) -> None:
    scaled = same_length(encoded)
    norms = [[np.linalg.norm(query.weights) for query in queries] for queries in scaled]
    longest = [max(some) for some in norms if any(some)]
    np.testing.assert_allclose(longest, longest[:1] * len(longest), rtol=1e-5)
    for before, after in zip(encoded, scaled, strict=True):
        assert [q.terms.tolist() for q in after] == [q.terms.tolist() for q in before]
        old = [np.linalg.norm(query.weights) for query in before]
        new = [np.linalg.norm(query.weights) for query in after]
        np.testing.assert_allclose(
            np.multiply(new, max(old, default=0)), np.multiply(old, max(new, default=0)), rtol=1e-4
        )  # one factor for all of them
    first = next((n for n, queries in enumerate(norms) if any(queries)), 0)
    for before, after in zip(encoded[: first + 1], scaled, strict=False):
        assert [q.weights.tolist() for q in after] == [q.weights.tolist() for q in before]


@pytest.mark.parametrize("shared", [True, False])
def test_a_shared_network_runs_once_per_question_and_counts_once(shared: bool) -> None:
    vocabulary = lexical().vocabulary
    networks = [CountedNetwork()] * 3 if shared else [CountedNetwork() for _ in range(3)]
    encoders = [
        observed(TrainedQueryEncoder(vocabulary, network), seed)
        for seed, network in enumerate(networks)
    ]
    encoded, flops = encode_queries(QUERIES, encoders)
    different = set(networks)
    assert [network.runs for network in different] == [1] * len(different)
    pieces = len(vocabulary.tokenizer.encode(QUERIES[0].question).ids)
    assert flops == 1_000 * pieces * len(different)
    for encoder, (vector, _) in zip(encoders, encoded, strict=True):
        doubled = encoder.encode_terms(QUERIES[0].question)
        alone = weighted_sum([(2 * QUERIES[0].question_weight, doubled)])
        terms = np.isin(vector.terms, alone.terms)
        ratios = vector.weights[terms] / alone.weights
        np.testing.assert_allclose(ratios, ratios[0], rtol=1e-6)
    # Asked again it runs again: nothing of a question is kept for the next.
    encode_queries(QUERIES, encoders)
    assert [network.runs for network in different] == [2] * len(different)


def test_an_encoder_without_a_network_costs_nothing_beside_one_with() -> None:
    network = CountedNetwork()
    trained = observed(TrainedQueryEncoder(lexical().vocabulary, network), 0)
    plain = observed(LexicalEncoder(lexical().vocabulary), 0)
    (by_network, by_words), flops = encode_queries(QUERIES, [trained, plain])
    assert flops == trained.query_flops(QUERIES[0].question)
    fish = int(plain.encode_terms("fish").terms[0])
    weights = [dict(zip(v[0].terms, v[0].weights, strict=True)) for v in (by_network, by_words)]
    espresso = int(plain.encode_terms("espresso").terms[0])
    ratios = [weight[fish] / weight[espresso] for weight in weights]
    assert ratios[0] == pytest.approx(2 * ratios[1])
