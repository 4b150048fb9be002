"""Engines agree: exact ones with each other, approximate ones with the oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_vectors import Given, Numbered, build_vectors, random_vectors

from skipqa.errors import UserError
from skipqa.knowledge.bm25 import BM25
from skipqa.knowledge.engines import parse_uri
from skipqa.knowledge.index import Index, build, delete
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.types import Hit, Passage, SparseVector


def same(found: list[list[Hit]], expected: list[list[Hit]]) -> bool:
    """Equal rows and scores; rounding may swap two rows with the same score."""
    return all(
        [h.row for h in a] == [h.row for h in b]
        or np.allclose([h.score for h in a], [h.score for h in b], rtol=1e-5)
        for a, b in zip(found, expected, strict=True)
    ) and all(len(a) == len(b) for a, b in zip(found, expected, strict=True))


# Ray forks, which gRPC forbids once it runs: this test comes before the one with Milvus.
def test_ray_workers_agree_with_one_process(tmp_path: Path, encoder: LexicalEncoder) -> None:
    ray = pytest.importorskip("ray", reason="the Ray engine is an extra")
    from skipqa.knowledge.engines.ray import RayEncoder

    folder = tmp_path / "i"
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(f'{{"text": "dog number {i} likes fish"}}\n' for i in range(60)))
    try:
        build_vectors(folder, random_vectors(400, 20, 1), shards=3)
        queries = random_vectors(10, 10, 2)
        spread = Index.open(f"ray:{folder}?workers=2")
        assert spread.search(queries, 4) == Index.open(folder).search(queries, 4)
        build(tmp_path / "one", [JsonLines(corpus)], encoder)
        build(tmp_path / "two", [JsonLines(corpus)], RayEncoder(encoder, tmp_path / "ray", 2))
        one, two = Index.open(tmp_path / "one"), Index.open(tmp_path / "two")
        assert one.manifest["segments"][0]["files"] == two.manifest["segments"][0]["files"]
    finally:
        ray.shutdown()


@pytest.mark.parametrize(
    ("uri", "parsed"),
    [
        ("a/b", ("local", Path("a/b"), {})),
        ("exact:a/b", ("exact", Path("a/b"), {})),
        ("/x:y/z", ("local", Path("/x:y/z"), {})),
        ("milvus:i?uri=http://h:19530", ("milvus", Path("i"), {"uri": "http://h:19530"})),
        ("local:i?postings=9&a=b", ("local", Path("i"), {"postings": "9", "a": "b"})),
    ],
)
def test_uris(uri: str, parsed: tuple[str, Path, dict[str, str]]) -> None:
    assert parse_uri(uri) == parsed


def test_the_compiled_search_is_the_numpy_search(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="the compiled engine is an extra")
    folder = tmp_path / "i"
    build_vectors(folder, random_vectors(4_000, 50, 1))
    delete(folder, [str(n) for n in range(0, 400, 7)])
    queries = [*random_vectors(30, 20, 2), *random_vectors(2, 2, 3)]
    for options in ("", "?postings=300&candidates=12", "?postings=60000&candidates=5000"):
        numpy = Index.open(f"local:{folder}{options}").search(queries, 4)
        compiled = Index.open(f"compiled:{folder}{options}").search(queries, 4)
        assert same(compiled, numpy)


def test_milvus_lite_agrees_with_the_oracle(tmp_path: Path) -> None:
    pytest.importorskip("pymilvus", reason="the Milvus engine is an extra")
    pytest.importorskip("milvus_lite", reason="the Milvus engine is an extra")
    folder = tmp_path / "i"
    build_vectors(folder, random_vectors(300, 20, 1))
    delete(folder, ["5", "6"])
    queries = random_vectors(5, 10, 2)
    opened = Index.open(f"milvus:{folder}")
    expected = Index.open(f"exact:{folder}").search(queries, 4)
    assert same(opened.search(queries, 4), expected)
    opened.engine.close()  # type: ignore[attr-defined]


def test_faiss_finds_its_embeddings(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="the FAISS engine is an extra")
    rng = np.random.default_rng(1)
    count = 10_500  # enough for IVF and PQ to be trained
    vectors = rng.normal(size=(count, 32)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    def embed(texts: list[str]) -> np.ndarray:
        return vectors[[int(text.split()[1]) for text in texts]]

    folder = tmp_path / "i"
    terms = [
        SparseVector(np.array([n % 99], np.int32), np.ones(1, np.float32)) for n in range(count)
    ]
    build(folder, [Numbered(count)], Given(terms), embed=embed)  # type: ignore[arg-type]
    delete(folder, ["0"])
    opened = Index.open(f"faiss:{folder}?nlist=64&pq=4&nprobe=64")
    exact = Index.open(folder)
    queries = vectors[1:21] + 0.1 * rng.normal(size=(20, 32)).astype(np.float32)
    truth = exact.search_dense(queries, 3)
    assert all(hits[0].row == n for n, hits in enumerate(truth[1:], start=2))
    found = opened.search_dense(queries, 10)
    near = [hits[0].row in {h.row for h in f} for hits, f in zip(truth, found, strict=True)]
    assert sum(near) >= 12  # four bytes per vector are coarse
    assert all(hit.row != 0 for hits in found for hit in hits)  # the first row was deleted
    with pytest.raises(UserError, match="dense queries"):
        opened.search([], 1)


def test_dense_search_without_embeddings_is_one_clear_line(index: Index) -> None:
    with pytest.raises(UserError, match="--embeddings"):
        index.search_dense(np.zeros((1, 4)), 1)


def test_bm25_is_okapis_formula() -> None:
    passages = [
        Passage("a", "", "cat cat dog", "s"),
        Passage("b", "", "dog bird", "s"),
        Passage("c", "", "fish", "s"),
    ]
    idf = np.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    expected = idf * 2 * 2.2 / (2 + 1.2 * (1 - 0.75 + 0.75 * 3 / 2))
    hits = BM25(passages).search("the cat?", 3)
    assert [h.row for h in hits] == [0]
    assert hits[0].score == pytest.approx(expected)
    assert [h.row for h in BM25(passages).search("dog", 3)] == [1, 0]
    assert BM25([]).search("dog", 3) == []
