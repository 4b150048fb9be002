"""A learned query encoder over lexical passages: what an index keeps of it, and how it is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner, Result

from skipqa.backbones.networks import sparse_query
from skipqa.backbones.networks.bert import Bert, BertConfig
from skipqa.backbones.networks.sparse_query import SparseQuery
from skipqa.cli.index import app
from skipqa.errors import UserError
from skipqa.knowledge.index import Index, build, verify
from skipqa.knowledge.learned import MAX_TERMS, MAX_TOKENS, LearnedEncoder
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.nn import checkpoint, compact, low_rank

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
    """A difference of nothing but a gate, which stays where it was."""
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


def test_untrained_it_asks_as_the_lexical_encoder_does(index: Index, unchanged: Path) -> None:
    lexical = index.encoder.encode_query(QUESTION)
    index.ask_with(unchanged)
    learned = index.encoder.encode_query(QUESTION)
    assert learned.terms.tolist() == lexical.terms.tolist()
    np.testing.assert_allclose(learned.weights, lexical.weights, rtol=1e-3)
    assert index.encoder.encode_terms(QUESTION).weights.tolist() == lexical.weights.tolist()


def test_terms_join_in_up_to_a_bound_and_only_those_of_the_index(
    index: Index, changed: Path
) -> None:
    lexical = index.encoder.encode_query(QUESTION)
    index.ask_with(changed)
    learned = index.encoder.encode_query(f"{QUESTION} " * 100)
    assert len(lexical) < len(learned) <= MAX_TERMS
    held = np.flatnonzero(index.segments[0].array("frequencies"))
    assert set(learned.terms.tolist()) <= set(held.tolist())
    assert (np.diff(learned.terms) > 0).all()
    assert index.search([learned], 4)[0]


def test_an_index_keeps_what_it_is_asked_with(
    corpus: Path, encoder: LexicalEncoder, built: Path, changed: Path, tmp_path: Path
) -> None:
    build(tmp_path / "i", [JsonLines(corpus)], LearnedEncoder(encoder.vocabulary, changed))
    assert verify(tmp_path / "i") == []
    expected = Index.open(built)
    expected.ask_with(changed)
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


def test_what_a_question_costs(index: Index, changed: Path) -> None:
    assert index.encoder.query_flops(QUESTION) == 0
    index.ask_with(changed)
    encoder = index.encoder
    assert isinstance(encoder, LearnedEncoder)
    ids = torch.tensor([encoder.tokenizer.encode(QUESTION).ids])
    network, matched_as = encoder._network
    with FlopCounterMode(display=False) as counter:
        network(ids, torch.ones_like(ids, dtype=torch.bool), matched_as)
    attention = 4 * TINY.width * ids.shape[1] ** 2  # fused on a CPU, where nothing counts it
    assert encoder.query_flops(QUESTION) == counter.get_total_flops() + attention


def test_the_command_builds_with_it_and_refuses_two_encoders(
    corpus: Path, changed: Path, tmp_path: Path
) -> None:
    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, ["build", str(tmp_path / "i"), *map(str, arguments)])

    assert run(corpus, "--learned", changed, "--json").exit_code == 0
    assert Index.open(tmp_path / "i").manifest["encoder"]["config"]["kind"] == "learned"
    absent = run(corpus, "--learned", tmp_path / "absent").exception
    assert isinstance(absent, UserError)
    assert "skipqa train splade" in str(absent)
    both = run(corpus, "--learned", changed, "--splade", "x").exception
    assert isinstance(both, UserError)
