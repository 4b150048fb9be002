"""The index: what is written can be read back, after any sequence of changes."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_vectors import build_vectors, random_vectors

from skipqa.errors import UserError
from skipqa.knowledge.index import Index, add, build, compact, delete, verify
from skipqa.knowledge.index.parts import quantise
from skipqa.knowledge.sources import Document
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.vectors import SparseRows
from skipqa.types import SparseVector


class Documents:
    name = "documents"

    def __init__(self, *documents: Document) -> None:
        self.documents = documents

    def fingerprint(self) -> str:
        return repr(self.documents)

    def read(self) -> object:
        return iter(self.documents)


def document(number: int, text: str = "") -> Document:
    return Document(f"d:{number}", f"title {number}", text or f"about subject{number}", "documents")


def texts(index: Index) -> dict[str, str]:
    found = {}
    for number in range(300):
        row = index.row_of(f"d:{number}")
        if row is not None:
            passage = index.passage(row)
            assert passage.id == f"d:{number}"
            found[passage.id] = passage.text
    return found


def test_passages_ids_and_vectors_come_back(index: Index, encoder: LexicalEncoder) -> None:
    assert len(index) == 400
    row = index.row_of("animals:123")
    assert row == 123
    passage = index.passage(row)
    assert passage.title == "eagle in norway"
    assert passage.source == "animals"
    chunk = index.chunk(row)
    lead = "eagle in norway: "  # the text does not hold its title
    assert passage.text.startswith(lead)
    assert chunk.end == len(passage.text) - len(lead)
    exact = encoder.encode_passages([passage])[0]
    stored = index.stored_vector(row)
    assert stored.terms.tolist() == exact.terms.tolist()
    assert np.abs(stored.weights - exact.weights).max() <= encoder.ceiling / 255 / 2 + 1e-6
    assert index.row_of("animals:400") is None
    assert index.embeddings([0, 1]) is None
    with pytest.raises(IndexError):
        index.passage(400)


def test_a_passage_asks_for_itself(index: Index) -> None:
    for row in range(0, 400, 37):
        assert index.search([index.vector(row)], 1)[0][0].row == row


def test_queries_hold_no_noise(index: Index) -> None:
    tokens = index.encoder.vocabulary.tokens  # type: ignore[attr-defined]
    query = index.encoder.encode_query("What is the name of this dog's country, [SEP] please?!")
    assert {tokens[t] for t in query.terms} <= {"name", "dog", "country"}
    assert len(index.encoder.encode_query("what is this?")) == 0
    assert len(index.encoder.encode_query("")) == 0
    dogs, dog = map(index.encoder.encode_query, ("dogs", "dog"))
    assert dogs.terms.tolist() == dog.terms.tolist()


@pytest.mark.parametrize("engine", ["local", "exact"])
def test_an_empty_query_finds_nothing_and_hurts_no_other(index: Index, engine: str) -> None:
    opened = Index.open(f"{engine}:{index.folder}")
    empty = SparseVector(np.zeros(0, np.int32), np.zeros(0, np.float32))
    frog = index.encoder.encode_query("frog")
    hits = opened.search([empty, frog, empty], 4)
    assert hits[0] == hits[2] == []
    assert hits[1] == opened.search([frog], 4)[0]
    assert opened.search([], 4) == []


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 400), k=st.integers(1, 12))
def test_enough_effort_is_exact(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, k: int
) -> None:
    """With budgets that cover the corpus, the fast search equals the oracle, ties included."""
    folder = tmp_path_factory.mktemp("exact")
    vectors = random_vectors(count, 12, seed, vocabulary=60)
    build_vectors(folder, vectors)
    fast = Index.open(f"local:{folder}?postings=60000&candidates=400")
    queries = random_vectors(9, 6, seed + 1, vocabulary=60)
    assert fast.search(queries, k) == Index.open(f"exact:{folder}").search(queries, k)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 400))
def test_asking_for_everything_is_exact(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int
) -> None:
    """k = N equals the oracle at the default effort."""
    folder = tmp_path_factory.mktemp("everything")
    build_vectors(folder, random_vectors(count, 12, seed, vocabulary=60))
    queries = random_vectors(5, 6, seed + 1, vocabulary=60)
    found = Index.open(folder).search(queries, count)
    assert found == Index.open(f"exact:{folder}").search(queries, count)


def test_the_oracle_is_the_inner_product(tmp_path: Path) -> None:
    vectors = random_vectors(200, 30, 1)
    index = build_vectors(tmp_path / "i", vectors)
    dense = np.zeros((200, 2_000))
    for row in range(200):
        stored = index.stored_vector(row)
        dense[row, stored.terms] = stored.weights
    for query in random_vectors(10, 20, 2):
        full = np.zeros(2_000)
        full[query.terms] = query.weights
        scores = dense @ full
        hits = Index.open(f"exact:{tmp_path / 'i'}").search([query], 5)[0]
        assert [h.row for h in hits] == np.lexsort((np.arange(200), -scores))[:5].tolist()
        assert np.allclose([h.score for h in hits], np.sort(scores)[::-1][:5], rtol=1e-5)


def test_default_effort_recalls_the_oracle(tmp_path: Path) -> None:
    folder = tmp_path / "i"
    index = build_vectors(folder, random_vectors(3_000, 60, 3))
    queries = random_vectors(64, 24, 4)
    exact = Index.open(f"exact:{folder}").search(queries, 4)
    found = index.search(queries, 4)
    hit = sum(
        len({h.row for h in a} & {h.row for h in b}) for a, b in zip(exact, found, strict=True)
    )
    assert hit / (4 * 64) >= 0.97
    one_by_one = [index.search([query], 4)[0] for query in queries]
    assert found == one_by_one  # a batch answers as its queries would alone


def test_shards_answer_as_one(tmp_path: Path) -> None:
    vectors, queries = random_vectors(500, 30, 5), random_vectors(8, 16, 6)
    one = build_vectors(tmp_path / "one", vectors)
    three = build_vectors(tmp_path / "three", vectors, shards=3)
    assert [s.rows for s in three.segments] == [166, 167, 167]
    assert three.search(queries, 4) == one.search(queries, 4)
    assert three.manifest["corpus"] == one.manifest["corpus"]


@given(st.lists(st.floats(0.0009765625, 9.0, width=32), min_size=1, max_size=40))
def test_quantisation_rounds_and_drops_nothing_that_counts(weights: list[float]) -> None:
    rows = SparseRows.stack(
        [SparseVector(np.arange(len(weights), dtype=np.int32), np.array(weights, np.float32))]
    )
    lengths, terms, impacts = quantise(rows, ceiling=4.0)
    step = 4.0 / 255
    assert lengths[0] == len(terms) == len(impacts)
    assert impacts.min(initial=1) >= 1
    back = dict(zip(terms.tolist(), impacts * step, strict=True))
    for term, weight in enumerate(weights):
        assert abs(back.get(term, 0.0) - min(weight, 4.0)) <= step / 2 + 1e-5


def test_add_delete_and_compaction_change_only_what_they_say(
    tmp_path: Path, encoder: LexicalEncoder
) -> None:
    folder = tmp_path / "i"
    build(folder, [Documents(*(document(n) for n in range(50)))], encoder)
    whole = tmp_path / "whole"
    build(whole, [Documents(*(document(n) for n in range(80)))], encoder)
    add(folder, [Documents(*(document(n) for n in range(50, 80)))])
    index, rebuilt = Index.open(folder), Index.open(whole)
    assert len(index) == 80
    assert texts(index) == texts(rebuilt)
    assert index.manifest["corpus"]["hash"] == rebuilt.manifest["corpus"]["hash"]
    query = rebuilt.encoder.encode_query("subject 77")
    found = {index.passage(h.row).id for h in index.search([query], 4)[0]}
    assert found == {rebuilt.passage(h.row).id for h in rebuilt.search([query], 4)[0]}

    add(folder, [Documents(document(3, "a new text"))])  # the same id again replaces
    index = Index.open(folder)
    assert len(index) == 80
    assert texts(index)["d:3"] == "a new text"
    assert delete(folder, ["d:3", "d:60", "d:999"]) == 2
    index = Index.open(folder)
    assert len(index) == 78
    assert index.row_of("d:60") is None
    every = index.search([index.encoder.encode_query("subject title new text")], 80)[0]
    assert len(every) == 78
    assert verify(folder) == []

    before = texts(index), index.manifest["corpus"]
    compact(folder)
    index = Index.open(folder)
    assert (texts(index), index.manifest["corpus"]) == before
    assert len(index.segments) == 1
    assert index.segments[0].rows == 78
    assert verify(folder) == []
    assert delete(folder, [f"d:{n}" for n in range(40)]) == 39  # compacts by itself
    assert [s.rows for s in Index.open(folder).segments] == [39]


def test_many_additions_are_compacted(tmp_path: Path, encoder: LexicalEncoder) -> None:
    folder = tmp_path / "i"
    build(folder, [Documents(document(0))], encoder)
    for number in range(1, 12):
        add(folder, [Documents(document(number))])
    index = Index.open(folder)
    assert len(index.segments) < 10
    assert sorted(texts(index)) == sorted(f"d:{n}" for n in range(12))


def test_an_open_index_survives_a_rebuild(tmp_path: Path, encoder: LexicalEncoder) -> None:
    folder = tmp_path / "i"
    build(folder, [Documents(document(1, "old words"))], encoder)
    old = Index.open(folder)
    assert old.passage(0).text == "old words"
    before = old.search([old.encoder.encode_query("old")], 1)
    build(folder, [Documents(document(1, "new words"))], encoder)
    assert old.passage(0).text == "old words"
    assert old.search([old.encoder.encode_query("old")], 1) == before
    assert Index.open(folder).passage(0).text == "new words"


def test_embeddings_travel_with_their_rows(tmp_path: Path, encoder: LexicalEncoder) -> None:
    def embed(texts: list[str]) -> np.ndarray:
        return np.array([[len(t), t.count("s"), 1.0] for t in texts])

    folder = tmp_path / "i"
    build(folder, [Documents(*(document(n) for n in range(30)))], encoder, embed=embed)
    with pytest.raises(UserError, match="embeddings"):
        add(folder, [Documents(document(40))])
    add(folder, [Documents(document(40, "sss"))], embed=embed)
    delete(folder, ["d:0"])
    compact(folder)
    index = Index.open(folder)
    row = index.row_of("d:40")
    assert row is not None
    found = index.embeddings([row, 0])
    assert found is not None
    assert found.tolist() == [[3, 3, 1], embed([index.passage(0).text])[0].tolist()]
    assert index.search_dense(np.array([[0.0, 1.0, 0.0]]), 1)[0][0].row == row


def test_an_index_may_be_emptied(tmp_path: Path, encoder: LexicalEncoder) -> None:
    build(tmp_path / "i", [Documents(document(1))], encoder)
    assert delete(tmp_path / "i", ["d:1"]) == 1
    index = Index.open(tmp_path / "i")
    assert len(index) == 0
    assert index.search([encoder.encode_query("dog")], 4) == [[]]
    assert index.row_of("x") is None


def test_a_corpus_of_nothing_is_refused_and_the_old_index_stays(
    tmp_path: Path, encoder: LexicalEncoder
) -> None:
    folder, bad = tmp_path / "i", tmp_path / "bad.jsonl"
    build(folder, [Documents(document(1))], encoder)
    bad.write_text("x\n{}\n")
    for change in (partial(build, encoder=encoder), add):
        with pytest.raises(UserError, match="no document found in documents"):
            change(folder, [Documents()])
        with pytest.raises(UserError, match=r"could be read.*: bad\.jsonl:1: .*, and 1 more$"):
            change(folder, [JsonLines(bad)])
        assert sorted(texts(Index.open(folder))) == ["d:1"]
        assert verify(folder) == []
    assert not (folder / "building").exists()


def test_a_kill_while_parts_are_removed_leaves_nothing_to_trip_over(
    tmp_path: Path, encoder: LexicalEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    (tmp_path / "more.jsonl").write_text('{"text": "a giraffe in france"}\n')
    rmtree = shutil.rmtree

    def half_way(folder: Path, **named: bool) -> None:
        if (folder / "part-00000").exists():
            rmtree(folder / "part-00000")
            raise Killed
        rmtree(folder, **named)

    source = JsonLines(tmp_path / "more.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", half_way)
        with pytest.raises(Killed):
            build(tmp_path / "i", [source], encoder)
    build(tmp_path / "i", [source], encoder)
    assert len(Index.open(tmp_path / "i")) == 1
    assert not (tmp_path / "i" / "building").exists()


def test_half_of_a_character_is_a_bad_row(tmp_path: Path, encoder: LexicalEncoder) -> None:
    """JSON may hold one, UTF-8 and the tokenizer cannot."""
    rows = '{"id": "a", "text": "tea"}\n{"id": "b", "text": "\\ud800 coffee"}\n'
    (tmp_path / "c.jsonl").write_text(rows)
    outcome = build(tmp_path / "i", [JsonLines(tmp_path / "c.jsonl")], encoder)
    assert outcome.passages == 1
    assert [reason[:17] for _, reason in outcome.progress.bad_rows_named] == ["not valid Unicode"]


def test_bad_rows_are_counted_and_named(tmp_path: Path, encoder: LexicalEncoder) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"text": "good"}\n{bad\n{"text": "fine"}\n{}\n')
    outcome = build(tmp_path / "i", [JsonLines(path)], encoder)
    assert outcome.passages == 2
    assert outcome.progress.bad_rows == 2
    assert [place for place, _ in outcome.progress.bad_rows_named] == ["c.jsonl:2", "c.jsonl:4"]
    assert Index.open(tmp_path / "i").manifest["corpus"]["bad_rows"] == 2


@pytest.mark.parametrize("uri", ["nowhere", "local:nowhere", "exact:nowhere"])
def test_no_index_is_one_clear_line(uri: str) -> None:
    with pytest.raises(UserError, match="skipqa index build"):
        Index.open(uri)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("locale:x", r"unknown engine .*did you mean local\?"),
        ("local:{}?postings=0", "whole number"),
        ("local:{}?speed=9", "unknown option"),
        ("local:{}?posting=9", r"unknown option .*did you mean postings\?"),
        ("exact:{}?k=1", "no options"),
    ],
)
def test_a_wrong_uri_is_one_clear_line(built: Path, uri: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Index.open(uri.format(built))


def test_another_format_says_so(built: Path, tmp_path: Path) -> None:
    copy = tmp_path / "i"
    shutil.copytree(built, copy)
    manifest = copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(UserError, match="format 99"):
        Index.open(copy)


def test_two_writers_do_not_meet(tmp_path: Path, encoder: LexicalEncoder) -> None:
    from skipqa.knowledge.index.format import sole_writer

    with sole_writer(tmp_path / "i"), pytest.raises(UserError, match="another process"):
        build(tmp_path / "i", [Documents(document(1))], encoder)
