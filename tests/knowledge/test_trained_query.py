"""A trained query encoder over lexical passages: in an index, and given when one is opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner, Result

from skipqa.backbones.networks import sparse_query
from skipqa.backbones.networks.bert import Bert, BertConfig
from skipqa.backbones.networks.sparse_query import SparseQuery
from skipqa.cli.index import app
from skipqa.errors import UserError
from skipqa.knowledge.encoder_wrappers import CachedQueries
from skipqa.knowledge.index import Index, build, verify
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.trained_query import MAX_TERMS, MAX_TOKENS, QueryNetwork, TrainedQueryEncoder
from skipqa.knowledge.vectors import NUM_TERMS
from skipqa.nn import checkpoint, compact, low_rank
from skipqa.types import SparseVector

TINY = BertConfig(width=12, layers=1, heads=2, ffn=16, positions=MAX_TOKENS)
QUESTION = "Which dog of France sleeps?"


def tiny() -> SparseQuery:
    torch.manual_seed(0)
    return SparseQuery(Bert(TINY)).eval()


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_query, "published", lambda *_: tiny())


def export(path: Path, network: SparseQuery) -> Path:
    base = tiny().state_dict()
    small = compact.pack(low_rank.delta(base, network.state_dict(), 8))
    checkpoint.save_tensors(small, path, component="sparse_query", preset="pocket")
    return path


@pytest.fixture
def unchanged(tmp_path: Path) -> Path:
    """A delta that changes nothing but a gate, by a negligible amount."""
    network = tiny()
    with torch.no_grad():
        network.head.gate.weight.fill_(1e-9)
    return export(tmp_path / "unchanged.safetensors", network)


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    network = tiny()
    torch.manual_seed(1)
    torch.nn.init.normal_(network.head.to_word.weight, std=0.5)
    return export(tmp_path / "changed.safetensors", network)


def test_untrained_it_equals_the_lexical_encoder(index: Index, unchanged: Path) -> None:
    lexical = index.encoder.encode_query(QUESTION)
    opened = Index.open(index.folder, trained_query=unchanged)
    trained = opened.encoder.encode_query(QUESTION)
    assert trained.terms.tolist() == lexical.terms.tolist()
    np.testing.assert_allclose(trained.weights, lexical.weights, rtol=1e-3)
    assert opened.encoder.encode_terms(QUESTION).weights.tolist() == lexical.weights.tolist()


def test_terms_are_added_up_to_a_bound_and_only_those_of_the_index(
    index: Index, changed: Path
) -> None:
    lexical = index.encoder.encode_query(QUESTION)
    opened = Index.open(index.folder, trained_query=changed)
    trained = opened.encoder.encode_query(f"{QUESTION} " * 100)
    assert len(lexical) < len(trained) <= MAX_TERMS
    held = np.flatnonzero(index.segments[0].array("frequencies"))
    assert set(trained.terms.tolist()) <= set(held.tolist())
    assert (np.diff(trained.terms) > 0).all()
    assert opened.search([trained], 4)[0]


def test_an_index_keeps_the_encoder_it_was_built_with(
    corpus: Path, encoder: LexicalEncoder, built: Path, changed: Path, tmp_path: Path
) -> None:
    build(
        tmp_path / "i",
        [JsonLines(corpus)],
        TrainedQueryEncoder(encoder.vocabulary, QueryNetwork(changed)),
    )
    assert verify(tmp_path / "i") == []
    expected = Index.open(built, trained_query=changed)
    same = expected.encoder.encode_query(QUESTION)
    changed.unlink()
    index = Index.open(tmp_path / "i")
    query = index.encoder.encode_query(QUESTION)
    assert query.terms.tolist() == same.terms.tolist()
    assert query.weights.tolist() == same.weights.tolist()
    # passages are the lexical ones
    for row in (0, 7, 399):
        stored, lexical = index.stored_vector(row), expected.stored_vector(row)
        assert stored.terms.tolist() == lexical.terms.tolist()
        assert stored.weights.tolist() == lexical.weights.tolist()


def test_flops_of_a_question(index: Index, changed: Path) -> None:
    assert index.encoder.query_flops(QUESTION) == 0
    encoder = Index.open(index.folder, trained_query=changed).encoder
    assert isinstance(encoder, TrainedQueryEncoder)
    ids = torch.tensor([encoder.tokenizer.encode(QUESTION).ids])
    matched_as = torch.from_numpy(encoder.vocabulary.matched_as[:NUM_TERMS]).long()
    with FlopCounterMode(display=False) as counter:
        encoder.network.module(ids, torch.ones_like(ids, dtype=torch.bool), matched_as)
    attention = 4 * TINY.width * ids.shape[1] ** 2  # fused on a CPU, where nothing counts it
    assert encoder.query_flops(QUESTION) == counter.get_total_flops() + attention


WORDS = st.sampled_from("which dog cat of france eats fish sleeps whale 7 hours zebra ?".split())
QUESTIONS = st.lists(WORDS, min_size=1, max_size=12).map(" ".join)


def same(a: SparseVector, b: SparseVector) -> bool:
    return a.terms.tolist() == b.terms.tolist() and a.weights.tolist() == b.weights.tolist()


# Files of a fixture do not change between examples.
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(questions=st.lists(QUESTIONS, min_size=1, max_size=4), k=st.integers(1, 8))
def test_opening_with_a_trained_query_changes_queries_and_nothing_else(
    built: Path, encoder: LexicalEncoder, changed: Path, questions: list[str], k: int
) -> None:
    """One folder opened with and without it, in turn: neither disturbs the other, and the trained
    one searches as the same encoder made by hand."""
    plain = Index.open(built)
    before = [plain.encoder.encode_query(question) for question in questions]
    trained = Index.open(built, trained_query=changed)
    by_hand = TrainedQueryEncoder(encoder.vocabulary, QueryNetwork(changed))
    by_hand.observe(plain.document_frequency(), len(plain))
    queries = [trained.encoder.encode_query(question) for question in questions]
    expected = [by_hand.encode_query(question) for question in questions]
    assert all(map(same, queries, expected))
    assert trained.search(queries, k) == plain.search(expected, k)
    assert all(map(same, before, map(plain.encoder.encode_query, questions)))
    assert plain.search(before, k) == Index.open(built).search(before, k)
    for row in range(0, len(plain), 61):
        assert same(trained.stored_vector(row), plain.stored_vector(row))
        assert same(trained.vector(row), plain.vector(row))
        assert trained.passage(row) == plain.passage(row)
    for question in questions:
        assert same(trained.encoder.encode_terms(question), plain.encoder.encode_terms(question))


def test_an_index_with_its_own_trained_queries_ignores_others(
    corpus: Path, encoder: LexicalEncoder, changed: Path, unchanged: Path, tmp_path: Path
) -> None:
    build(
        tmp_path / "i",
        [JsonLines(corpus)],
        TrainedQueryEncoder(encoder.vocabulary, QueryNetwork(changed)),
    )
    own = Index.open(tmp_path / "i").encoder.encode_query(QUESTION)
    other = Index.open(tmp_path / "i", trained_query=unchanged).encoder.encode_query(QUESTION)
    assert same(own, other)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(questions=st.lists(QUESTIONS, max_size=12), size=st.integers(1, 4))
def test_a_query_cache_changes_no_query(
    built: Path, changed: Path, questions: list[str], size: int
) -> None:
    for weights in (None, changed):
        plain = Index.open(built, trained_query=weights).encoder
        cached = Index.open(built, trained_query=weights, query_cache=size).encoder
        assert isinstance(cached, CachedQueries)
        assert cached.encodes_whole_questions == plain.encodes_whole_questions
        assert (cached.config(), cached.ceiling) == (plain.config(), plain.ceiling)
        for question in questions:
            assert same(cached.encode_query(question), plain.encode_query(question))
            assert same(cached.encode_terms(question), plain.encode_terms(question))
            assert cached.query_flops(question) == plain.query_flops(question)


def test_a_cached_query_is_encoded_once(built: Path) -> None:
    cached = Index.open(built, query_cache=2).encoder
    first = cached.encode_query("a dog")
    assert cached.encode_query("a dog") is first
    cached.encode_query("a cat")
    cached.encode_query("a frog")  # the third of two: the first is forgotten
    assert cached.encode_query("a dog") is not first


def test_the_command_builds_with_it_and_refuses_two_encoders(
    corpus: Path, changed: Path, tmp_path: Path
) -> None:
    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, ["build", str(tmp_path / "i"), *map(str, arguments)])

    assert run(corpus, "--trained-query", changed, "--json").exit_code == 0
    assert Index.open(tmp_path / "i").manifest["encoder"]["config"]["kind"] == "learned"
    absent = run(corpus, "--trained-query", tmp_path / "absent").exception
    assert isinstance(absent, UserError)
    assert "skipqa train splade" in str(absent)
    both = run(corpus, "--trained-query", changed, "--splade", "x").exception
    assert isinstance(both, UserError)
