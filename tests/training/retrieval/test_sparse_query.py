"""Training what to ask: on a tiny index with a tiny network, on a CPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import write_lines

from skipqa.backbones.networks.bert import Bert, BertConfig
from skipqa.backbones.networks.sparse_query import SparseQuery
from skipqa.knowledge import Library
from skipqa.knowledge.index import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.training.export import read_back
from skipqa.training.loop import Diverged
from skipqa.training.retrieval import sparse_query
from skipqa.training.retrieval.pairs import NO_ROW, Pairs, prepare
from skipqa.training.retrieval.query import HELD_OUT_SOURCES, SOURCES, Query
from skipqa.training.retrieval.stored import Corpus, Ragged
from skipqa.training.run import Run

TINY = BertConfig(width=24, layers=1, heads=2, ffn=32, positions=64)
CPU = torch.device("cpu")
LANDS = ("france", "japan", "kenya", "peru", "norway", "india", "egypt", "canada", "chad", "cuba")
# What is asked for, and the word that the passage has for it
FACTS = {"money": "currency", "chief town": "capital", "tallest place": "summit"}
SETTINGS = sparse_query.SparseTraining(
    hard=4, steps=60, batch=8, hard_used=2, lr=1e-2, asked_times=1, people_times=1, ranks=(2, 8)
)


def network() -> SparseQuery:
    torch.manual_seed(0)
    return SparseQuery(Bert(TINY))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Passages that share no word with their questions but the land; every fourth land is held
    out. Questions count as Factbook's and, to have all kinds, as the others'."""
    folder = tmp_path_factory.mktemp("sparse")
    rows = [
        {"id": f"{land}:{word}", "title": land, "text": f"{land} has the {word} number {i}."}
        for i, land in enumerate(LANDS)
        for word in FACTS.values()
    ]
    write_lines(folder / "facts.jsonl", rows)
    build(folder / "index", [JsonLines(folder / "facts.jsonl")], LexicalEncoder.default())
    library = Library.open([folder / "index"])
    source = library.passage(0).id.partition(":")[0]
    queries = [
        Query(land, f"what {asked} has it?", (f"{source}:{land}:{word}",), kind, i % 4 == 0)
        for i, land in enumerate(LANDS)
        for asked, word in FACTS.items()
        for kind in SOURCES
    ]
    return prepare(Corpus.of(library, CPU), queries, SETTINGS.hard, lambda *_: None)


def test_several_indexes_are_prepared_as_one(tmp_path: Path) -> None:
    """The same idf, the same rows, the same hard negatives."""
    encoder, texts = LexicalEncoder.default(), ("a dog of {}", "the capital of {} is large", "{}")
    names = ("one", "two")
    for name in names:
        rows = [
            {"id": f"{land} {i}", "text": text.format(land)}
            for land in LANDS[names.index(name) :: 2]
            for i, text in enumerate(texts)
        ]
        write_lines(tmp_path / f"{name}.jsonl", rows)
        build(tmp_path / name, [JsonLines(tmp_path / f"{name}.jsonl")], encoder)
    both = [JsonLines(tmp_path / f"{name}.jsonl") for name in names]
    build(tmp_path / "pooled", both, encoder)
    queries = [
        Query(land, "which capital?", (f"{names[i % 2]}:{land} 1",), SOURCES[0], False)
        for i, land in enumerate(LANDS)
    ]
    apart, pooled = (
        prepare(Corpus.of(Library.open(uris), CPU), queries, SETTINGS.hard, lambda *_: None)
        for uris in ([tmp_path / name for name in names], [tmp_path / "pooled"])
    )
    for name in ("idf", "gold", "hard", "impacts"):
        assert torch.equal(getattr(apart, name), getattr(pooled, name)), name
    assert torch.equal(apart.terms.values, pooled.terms.values)


def test_pairs_are_what_the_index_holds(made: Pairs, tmp_path: Path) -> None:
    assert len(made.terms.ends) == len(LANDS) * len(FACTS)
    gold, hard = made.gold[:, :1], made.hard
    assert (gold >= 0).all()
    assert (made.gold[:, 1:] == NO_ROW).all()
    assert not (gold == hard).any()
    assert (hard[:, 0] >= 0).all()  # the same land's other facts
    made.save(tmp_path / "pairs.safetensors")
    again = Pairs.load(tmp_path / "pairs.safetensors")
    for field in dataclasses.fields(made):
        one, other = getattr(made, field.name), getattr(again, field.name)
        for a, b in [(one.values, other.values)] if isinstance(one, Ragged) else [(one, other)]:
            assert torch.equal(a, b)


def test_ragged_rows_come_back_padded() -> None:
    ragged = Ragged.of([[1, 2, 3], [], [4]])
    found, mask = ragged.padded(torch.tensor([2, 0, 1, 0]))
    assert found.tolist() == [[4, 0, 0], [1, 2, 3], [0, 0, 0], [1, 2, 3]]
    assert mask.sum(1).tolist() == [1, 3, 0, 3]


def test_scores_are_inner_products(made: Pairs) -> None:
    queries = torch.rand(3, len(made.idf))
    scores = made.scores(queries, torch.arange(len(made.terms.ends)))
    for row in (0, 11, 29):
        places, _ = made.terms.places(torch.tensor([row]))
        terms, impacts = made.terms.values[places].long(), made.impacts[places] / 255
        torch.testing.assert_close(scores[:, row], queries[:, terms] @ impacts)


def first_hits(network: SparseQuery, made: Pairs, rows: torch.Tensor) -> float:
    """How often the best passage of all is the right one."""
    weights, _ = sparse_query.ask(network, made, rows, torch.zeros(len(rows)))
    best = made.scores(weights * made.idf, torch.arange(len(made.terms.ends))).argmax(1)
    return float((best == made.gold[rows, 0]).float().mean())


def test_it_learns_which_word_a_passage_has_for_it(made: Pairs, tmp_path: Path) -> None:
    learner, rows = network(), made.select("factbook", held_out=True)
    by_luck = first_hits(learner, made, rows)
    # Random words are near no other: many terms must begin in sight.
    eager = dataclasses.replace(SETTINGS, steps=100, lr=3e-2, text_lr_scale=0.3, joining=200)
    metrics = sparse_query.train(learner, made, eager, Run(tmp_path, seed=3))
    assert first_hits(learner, made, rows) > by_luck + 0.5
    assert metrics["terms"]["joined"] > 0
    assert metrics["trained"].keys() == metrics["training_free"].keys()


def test_a_useless_term_is_suppressed_and_a_useful_one_is_not(made: Pairs) -> None:
    loud = network()
    currency, number = (int(made.matched_as[i]) for i in (9598, 2193))  # as the passages have them
    with torch.no_grad():
        loud.head.bias.fill_(-1.0)
        loud.head.bias[[currency, 5]] = 2.0  # in a third of the passages, in none
    rows = made.select("factbook", held_out=False)
    sparse_query.suppress_useless(loud, made, seed=0, fraction=0.5)
    _, joined = sparse_query.ask(loud, made, rows, torch.ones(len(rows)))
    assert not joined[:, 5].any()
    assert not joined[:, number].any()
    assert not joined[:, currency].any()  # of use to a third, joined in for all
    with torch.no_grad():
        loud.head.bias[currency] = 2.0
    sparse_query.suppress_useless(loud, made, seed=0, fraction=0.7)
    _, joined = sparse_query.ask(loud, made, rows, torch.ones(len(rows)))
    assert joined[:, currency].all()


def test_what_is_exported_reads_back_the_same(made: Pairs, tmp_path: Path) -> None:
    trained = network()
    published = {name: value.clone() for name, value in trained.state_dict().items()}
    settings = dataclasses.replace(SETTINGS, steps=6)
    metrics = sparse_query.train(trained, made, settings, Run(tmp_path))
    again = network()
    read_back(again, published, tmp_path / sparse_query.DELTA)
    assert sparse_query.measure(again, made, SOURCES) == metrics["trained"]
    assert metrics["before_truncation"].keys().isdisjoint(HELD_OUT_SOURCES)  # no say in the rank
    assert "head.to_word.weight" in load_file(tmp_path / sparse_query.DELTA)  # whole


def test_the_same_seed_gives_the_same_bits_also_after_a_kill(made: Pairs, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, steps=8)

    class Killed(Exception):
        pass

    def kill(what: str, done: int, total: int, loss: float | None) -> None:
        if done >= 4:
            raise Killed

    sparse_query.train(network(), made, settings, Run(tmp_path / "a"))
    with pytest.raises(Killed):
        sparse_query.train(
            network(), made, settings, Run(tmp_path / "b", progress=kill, save_every_s=0)
        )
    sparse_query.train(network(), made, settings, Run(tmp_path / "b", save_every_s=0))
    one, other = (load_file(tmp_path / run / sparse_query.DELTA) for run in "ab")
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_loss_that_is_no_number_stops_it(made: Pairs, tmp_path: Path) -> None:
    broken = network()
    with torch.no_grad():
        broken.head.gate.weight.fill_(torch.nan)
    with pytest.raises(Diverged):
        sparse_query.train(broken, made, dataclasses.replace(SETTINGS, steps=2), Run(tmp_path))
