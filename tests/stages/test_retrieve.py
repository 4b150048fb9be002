"""retrieve: the union over regions keeps the best of each passage; queries are plain sums."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic import WIDTH, kept_tokens, question, run, state

from skipqa.config import RetrieveConfig
from skipqa.knowledge import Index
from skipqa.knowledge.index.build import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.nn.region_query import RegionQueryConfig, build_region_query
from skipqa.pipeline import Pipeline
from skipqa.stages import retrieve
from skipqa.stages.retrieve import (
    ConceptQuerier,
    DenseQuerier,
    Retrieve,
    SparseQuerier,
    best_hits,
    weighted_sum,
)
from skipqa.trace import StageRecord
from skipqa.types import Budget, Hit, Question, Region, Retrieved, SparseVector

# Few rows and scores, so that the same passage and equal scores are common.
hits = st.lists(
    st.dictionaries(st.integers(0, 8), st.sampled_from([0.5, 1.0, 1.5, 2.0]), max_size=5).map(
        lambda found: [Hit(row, score) for row, score in found.items()]
    ),
    max_size=6,
)


@given(hits)
def test_each_passage_once_with_its_best_score(hits: list[list[Hit]]) -> None:
    found = best_hits(hits)
    assert len({hit.row for hit, _ in found}) == len(found)
    assert {hit.row for hit, _ in found} == {hit.row for region in hits for hit in region}
    for hit, region in found:
        scores = [h.score for one in hits for h in one if h.row == hit.row]
        assert hit.score == max(scores)
        assert hit in hits[region]
        assert all(hit not in earlier for earlier in hits[:region])
    order = [(-hit.score, hit.row) for hit, _ in found]
    assert order == sorted(order)


@given(hits)
def test_deduplication_is_idempotent(hits: list[list[Hit]]) -> None:
    once = [hit for hit, _ in best_hits(hits)]
    assert [hit for hit, _ in best_hits([once])] == once
    assert [hit for hit, _ in best_hits([once, once])] == once


@given(hits.flatmap(lambda hits: st.tuples(st.just(hits), st.permutations(hits))))
def test_order_of_regions_does_not_matter(pair: tuple[list[list[Hit]], list[list[Hit]]]) -> None:
    hits, permuted = pair
    assert [hit for hit, _ in best_hits(hits)] == [hit for hit, _ in best_hits(permuted)]


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


@pytest.fixture(scope="module")
def cup(pipeline: Pipeline) -> Region:
    names = [concept.name for concept in pipeline.backbone.concepts.entries]
    concepts = ((names.index("espresso"), 0.6), (names.index("cup"), 0.3))
    return Region((0.0, 0.0, 0.5, 0.5), (0, 1), concepts, 1.0)


def test_a_region_asks_for_what_it_shows_and_what_is_asked(pipeline: Pipeline, cup: Region) -> None:
    index = pipeline.index
    querier = ConceptQuerier(RetrieveConfig(), pipeline.backbone, index)
    (query,), flops = querier.queries(state(question=question("…", "pressure"), regions=(cup,)))
    asked_for = {index.encoder.tokenizer.id_to_token(int(term)) for term in query.terms}
    assert {"cup", "coffee", "pressure"} <= asked_for
    assert flops == 0
    found = index.search([query], 4)[0]
    assert "espresso" in [index.passage(hit.row).title for hit in found]


def retrieved(
    pipeline: Pipeline, regions: Sequence[Region], asked: Question, passages: int
) -> tuple[Retrieved, StageRecord]:
    entering = state(question=asked, regions=tuple(regions), budget=Budget(1, passages))
    leaving, record = run(retrieve.build(pipeline.parts), entering)
    return leaving.retrieved, record


def test_budget_of_passages(pipeline: Pipeline, cup: Region) -> None:
    for passages in (1, 3, 100):
        found, record = retrieved(pipeline, [cup, cup], question("…", "brewed"), passages)
        assert len(found.passages) == min(passages, found.num_unique)
        assert (found.num_hits, found.num_unique) == (8, 4)
        assert (record.kept or 0) + (record.dropped or 0) == found.num_hits
        assert all(passage.region == 0 for passage in found.passages)


def test_no_budget_no_search(pipeline: Pipeline, cup: Region) -> None:
    found, record = retrieved(pipeline, [cup], question("…", "brewed"), 0)
    assert found == Retrieved((), 0, 0)
    assert (record.kept, record.dropped) == (0, 0)


def test_all_passages_are_those_of_the_oracle(
    pipeline: Pipeline, cup: Region, tmp_path: Path
) -> None:
    """k' = N and K' = N: every passage that shares a term, by its best inner product."""
    titles = ["espresso", "cup", "coffee", "beagle", "pressure", "steam", "hound", "water"]
    rows = [
        {"id": str(i), "title": f"{one} {i}", "text": f"{one} with {other} and {titles[i % 3]}"}
        for i, (one, other) in enumerate(itertools.product(titles, titles))
    ]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build(tmp_path / "index", [JsonLines(corpus)], pipeline.index.encoder)
    index = Index.open(tmp_path / "index")
    dog = Region((0.5, 0.5, 1, 1), (2,), ((concept_named(pipeline, "beagle"), 0.8),), 0.5)
    querier = ConceptQuerier(RetrieveConfig(per_region=len(index)), pipeline.backbone, index)
    asking = state(
        question=question("…", "pressure"), regions=(cup, dog), budget=Budget(1, len(index))
    )
    leaving, _ = run(Retrieve(querier, index), asking)
    queries, _ = querier.queries(asking)
    oracle = Index.open(f"exact:{index.folder}").search(queries, len(index))
    best: dict[int, float] = {}
    for hit in itertools.chain(*oracle):
        best[hit.row] = max(hit.score, best.get(hit.row, 0.0))
    expected = sorted(best.items(), key=lambda item: (-item[1], item[0]))
    assert [(p.row, p.score) for p in leaving.retrieved.passages] == expected
    assert len(expected) > len(rows) / 2


def concept_named(pipeline: Pipeline, name: str) -> int:
    return [concept.name for concept in pipeline.backbone.concepts.entries].index(name)


class EmptyIndex:
    """Finds nothing, and remembers what it was asked."""

    def search_dense(self, queries: np.ndarray, k: int) -> list[list[Hit]]:
        self.queries = queries
        return [[] for _ in queries]

    def search(self, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
        self.sparse = queries
        return [[] for _ in queries]

    def __len__(self) -> int:
        return 0


def test_a_dense_query_sees_the_box_itself() -> None:
    """Variant B: the same tokens under another box ask something else."""
    torch.manual_seed(0)
    kept, index = kept_tokens(4, [5, 6], 0), EmptyIndex()
    phi = build_region_query(RegionQueryConfig(WIDTH, WIDTH, "B", hidden=8, retrieval_width=5))
    boxes = [(0.1, 0.2, 0.5, 0.9), (0.1, 0.2, 0.5, 0.9), (0.3, 0.3, 0.4, 0.4)]
    regions = tuple(Region(box, (5, 6), (), 1.0) for box in boxes)
    stage = Retrieve(DenseQuerier(cast(Any, phi.eval()), cast(Any, index), 4), cast(Any, index))
    _, record = run(
        stage, state(kept=kept, regions=regions, question=question(), budget=Budget(1, 4))
    )
    assert record.flops > 0
    centre = kept.tokens.meaning[[5, 6]].mean(0).expand(3, -1)
    with torch.inference_mode():
        expected = phi(centre, question().embedding, torch.tensor(boxes))
    np.testing.assert_allclose(index.queries, expected.numpy(), rtol=1e-5)
    assert np.array_equal(index.queries[0], index.queries[1])
    assert not np.allclose(index.queries[0], index.queries[2])


def test_a_sparse_query_is_of_the_regions_mean_token_and_the_question() -> None:
    """Variant A: one query per region, of the network that was trained to write it."""
    torch.manual_seed(0)
    kept, index = kept_tokens(4, [1, 5, 6], 0), EmptyIndex()
    phi = build_region_query(RegionQueryConfig(WIDTH, WIDTH, hidden=8)).eval()
    regions = tuple(Region((0, 0, 1, 1), members, (), 1.0) for members in ((5, 6), (1,)))
    querier = SparseQuerier(cast(Any, phi), cast(Any, index), 4)
    hits, flops = querier(state(kept=kept, regions=regions, question=question()))
    assert hits == [[], []]
    assert flops > 0
    centres = torch.stack([kept.tokens.meaning[[5, 6]].mean(0), kept.tokens.meaning[1]])
    with torch.inference_mode():
        expected = phi.queries(phi(centres, question().embedding))
    for found, wanted in zip(index.sparse, expected, strict=True):
        assert np.array_equal(found.terms, wanted.terms)
        np.testing.assert_allclose(found.weights, wanted.weights, rtol=1e-5)
