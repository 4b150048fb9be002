"""The lexical encoder: its formula, and its idf on a growing index."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipqa.knowledge.encoder_reader import EncoderReader
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.vectors import NUM_TERMS, SparseRows, spans, sum_duplicates
from skipqa.types import Passage, SparseVector


def weights(encoder: LexicalEncoder, title: str, text: str) -> dict[str, float]:
    vector = encoder.encode_passages([Passage("x", title, text, "s")])[0]
    tokens = encoder.vocabulary.tokens
    return {tokens[t]: w for t, w in zip(vector.terms, vector.weights.tolist(), strict=True)}


def test_weights_are_bm25s_saturation(encoder: LexicalEncoder) -> None:
    found = weights(encoder, "dog", "The dogs and the cat: a dog!")
    length = 2.0 + 2.0 + 1.0  # the title's dog counts twice, dogs is dog, grammar is nothing
    norm = 1.2 * (1 - 0.5 + 0.5 * length / 20)
    assert set(found) == {"dog", "cat"}
    assert found["dog"] == pytest.approx(4 * 2.2 / (4 + norm), rel=1e-5)
    assert found["cat"] == pytest.approx(1 * 2.2 / (1 + norm), rel=1e-5)
    assert max(found.values()) < encoder.ceiling


@pytest.mark.parametrize(
    ("word", "matched"),
    [
        ("dogs", "dog"), ("countries", "country"), ("horses", "horse"), ("glass", "glass"),
        ("bus", "bus"), ("tennis", "tennis"), ("1889", "1889"),
    ],
)  # fmt: skip
def test_plurals_meet_their_singular(encoder: LexicalEncoder, word: str, matched: str) -> None:
    assert list(weights(encoder, "", word)) == [matched]


def test_rare_terms_weigh_more_in_a_query(encoder: LexicalEncoder) -> None:
    frequency = np.zeros(NUM_TERMS, np.int64)
    tokens = {token: term for term, token in enumerate(encoder.vocabulary.tokens)}
    frequency[[tokens["dog"], tokens["eagle"]]] = 500, 3
    fresh = LexicalEncoder(encoder.vocabulary)
    fresh.observe(frequency, 1_000)
    query = fresh.encode_query("dog eagle zebra")
    named = dict(zip(query.terms.tolist(), query.weights.tolist(), strict=True))
    assert set(named) == {tokens["dog"], tokens["eagle"]}  # no passage has a zebra
    assert named[tokens["eagle"]] > named[tokens["dog"]] > 0
    doubled = fresh.as_query(SparseVector(query.terms, np.full(2, 2.0, np.float32)))
    assert doubled.weights.tolist() == pytest.approx([2 * w for w in query.weights.tolist()])


def test_a_saved_encoder_is_the_same(encoder: LexicalEncoder, tmp_path: object) -> None:
    encoder.save(tmp_path)  # type: ignore[arg-type]
    again = EncoderReader().read(encoder.config(), tmp_path)  # type: ignore[arg-type]
    passages = [Passage("x", "Espresso", "strong black coffee", "s")]
    one, two = encoder.encode_passages(passages)[0], again.encode_passages(passages)[0]
    assert one.terms.tolist() == two.terms.tolist()
    assert one.weights.tolist() == two.weights.tolist()


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(-3, 3, width=16)), max_size=30))
def test_duplicates_are_added(pairs: list[tuple[int, float]]) -> None:
    terms = np.array([t for t, _ in pairs], np.int32)
    vector = sum_duplicates(terms, np.array([w for _, w in pairs], np.float32))
    assert (np.diff(vector.terms) > 0).all()
    assert (vector.weights > 0).all()
    for term, weight in zip(vector.terms, vector.weights, strict=True):
        assert weight == pytest.approx(sum(w for t, w in pairs if t == term), rel=1e-3, abs=1e-3)


@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 5)), max_size=20))
def test_spans(ranges: list[tuple[int, int]]) -> None:
    starts = np.array([s for s, _ in ranges], np.int64)
    lengths = np.array([n for _, n in ranges], np.int64)
    expected = [i for start, n in ranges for i in range(start, start + n)]
    assert spans(starts, lengths).tolist() == expected


def test_rows_come_back_from_their_block() -> None:
    vectors = [
        SparseVector(np.array(t, np.int32), np.array(w, np.float32))
        for t, w in (([1, 9], [0.5, 2.0]), ([], []), ([65_000], [1.0]))
    ]
    block = SparseRows.stack(vectors)
    assert len(block) == 3
    for number, vector in enumerate(vectors):
        assert block[number].terms.tolist() == vector.terms.tolist()
        assert block[number].weights.tolist() == vector.weights.tolist()
