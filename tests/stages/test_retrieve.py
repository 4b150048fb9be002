"""retrieve: the union over regions keeps the best of each passage; queries are plain sums."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from synthetic import WIDTH, concepts, kept_tokens, naming, question, run, state

from skipqa.config import RetrieveConfig
from skipqa.knowledge import Index, Library
from skipqa.knowledge.index.build import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.text_query import encode_queries
from skipqa.nn.region_query import RegionQueryConfig, SparseRegionQuery, build_region_query
from skipqa.pipeline import Pipeline
from skipqa.stages import retrieve
from skipqa.stages.regions import EVERYWHERE, region_views
from skipqa.stages.retrieve import (
    ConceptQuerier,
    DenseQuerier,
    Retrieve,
    SparseQuerier,
    written_out,
)
from skipqa.trace import StageRecord
from skipqa.types import Budget, Draft, Hit, Question, Region, Retrieved, SparseVector

WHOLE = RetrieveConfig(excerpt_words=0)  # passages are read whole


@pytest.fixture(scope="module")
def cup(pipeline: Pipeline) -> Region:
    names = [concept.name for concept in pipeline.backbone.concepts.entries]
    concepts = ((names.index("espresso"), 0.6), (names.index("cup"), 0.3))
    return Region((0.0, 0.0, 0.5, 0.5), (0, 1), concepts, 1.0)


def test_a_region_asks_for_what_it_shows_and_what_is_asked(pipeline: Pipeline, cup: Region) -> None:
    index = pipeline.library.indexes["wordnet"]
    querier = ConceptQuerier(RetrieveConfig(), pipeline.backbone)
    written = querier.write(state(question=question("…", "pressure"), regions=(cup,)))
    ((query,),), flops = encode_queries(written, [index.encoder])
    asked_for = {index.encoder.tokenizer.id_to_token(int(term)) for term in query.terms}
    assert {"cup", "coffee", "pressure"} <= asked_for
    assert flops == 0
    found = index.search([query], 4)[0]
    assert "espresso" in [index.passage(hit.row).title for hit in found]


def test_a_region_also_asks_for_what_the_drafter_thinks_of(pipeline: Pipeline, cup: Region) -> None:
    """By its probability; by default not at all."""
    candidates = (("italy", math.log(0.6)), ("brazil", math.log(0.1)))
    draft = Draft("", 0.1, "", candidates=candidates, abstain_prob=0.25)
    entering = state(question=question("…", "pressure"), regions=(cup,), draft=draft)
    querier = ConceptQuerier(RetrieveConfig(draft_weight=2.0), pipeline.backbone)
    (query,) = querier.write(entering)
    (plain,) = ConceptQuerier(RetrieveConfig(), pipeline.backbone).write(entering)
    assert query.texts[: len(plain.texts)] == plain.texts
    added = query.texts[len(plain.texts) :]
    assert [text for _, text in added] == ["italy", "brazil"]
    assert [weight for weight, _ in added] == pytest.approx([2 * 0.6, 2 * 0.1])
    undrafted = state(question=question("…", "pressure"), regions=(cup,))
    assert querier.write(undrafted) == [plain]


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
        indexes = len(pipeline.library.names)
        assert (found.num_hits, found.num_unique) == (2 * 4 * indexes, 4 * indexes)  # two regions
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
    build(tmp_path / "index", [JsonLines(corpus)], LexicalEncoder.default())
    index = Index.open(tmp_path / "index")
    dog = Region((0.5, 0.5, 1, 1), (2,), ((concept_named(pipeline, "beagle"), 0.8),), 0.5)
    querier = ConceptQuerier(RetrieveConfig(per_region=len(index)), pipeline.backbone)
    asking = state(
        question=question("…", "pressure"), regions=(cup, dog), budget=Budget(1, len(index))
    )
    leaving, _ = run(Retrieve(querier, Library({"one": index}), WHOLE), asking)
    (queries,), _ = encode_queries(querier.write(asking), [index.encoder])
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


def phi_of(variant: str, **sizes: int) -> Any:
    """Random and far from its start, over the synthetic tokens."""
    torch.manual_seed(0)
    config = RegionQueryConfig(
        6, 7, WIDTH, cast(Any, variant), hidden=8, retrieval_width=WIDTH, **sizes
    )
    phi = build_region_query(config).eval()
    for parameter in phi.parameters():
        torch.nn.init.normal_(parameter)
    return phi


def names_of() -> ConceptQuerier:
    made = concepts(*((name, ()) for name in ("espresso", "beagle", "water", "steam", "cup")))
    return ConceptQuerier(RetrieveConfig(), naming(made))


def test_a_dense_query_sees_the_box_itself() -> None:
    """Variant B: the same tokens under another box ask something else, each added to the mean
    embedding of the names and the question."""
    kept, index, phi = kept_tokens(4, [5, 6], 0), EmptyIndex(), phi_of("B")
    boxes = [(0.1, 0.2, 0.5, 0.9), (0.1, 0.2, 0.5, 0.9), (0.3, 0.3, 0.4, 0.4)]
    regions = tuple(Region(box, (5, 6), ((1, 0.5), (4, 0.25)), 1.0) for box in boxes)
    names = names_of()
    asking = state(kept=kept, regions=regions, question=question())
    hits, _, flops = DenseQuerier(phi, names, 4)(asking, [cast(Any, index)])
    assert hits == [[[], [], []]]
    assert flops > 0
    embeddings = names.backbone.concepts.embeddings
    named = 0.3 * question().embedding + 0.5 * embeddings[1] + 0.25 * embeddings[4]
    with torch.inference_mode():
        expected = named + phi(region_views(asking, 7), question().embedding, torch.tensor(boxes))
    np.testing.assert_allclose(index.queries, expected.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(index.queries[0], index.queries[1], rtol=1e-4, atol=1e-5)
    assert not np.allclose(index.queries[0], index.queries[2])


def test_a_region_is_seen_by_its_features_and_its_evidence() -> None:
    kept = kept_tokens(4, [1, 5, 6], 0)
    regions = (
        Region((0, 0, 1, 1), (5, 6), ((2, 0.5), (9, 0.4)), 1.0),  # 9: of an index's photos
        EVERYWHERE,
    )
    views = region_views(state(kept=kept, regions=regions), 7)
    weights = kept.saliency[[5, 6]]
    expected = (weights[:, None] * kept.tokens.features[[5, 6]]).sum(0) / weights.sum()
    torch.testing.assert_close(views.features[0], expected)
    assert views.evidence[0].tolist() == [0, 0, 0.5, 0, 0, 0, 0]
    assert not views.features[1].any()
    assert not views.evidence[1].any()


def small_index(folder: Path, words: Sequence[str], seed: int) -> Index:
    """Every pair of words is a passage, with an embedding."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"id": str(i), "text": f"{a} and {b}"} for i, (a, b) in enumerate(pairs(words))]
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rng = np.random.default_rng(seed)
    build(
        folder / "index",
        [JsonLines(corpus)],
        LexicalEncoder.default(),
        embed=lambda texts: rng.normal(size=(len(texts), WIDTH)).astype(np.float32),
    )
    return Index.open(folder / "index")


def two_indexes(folder: Path) -> dict[str, Index]:
    words = ("espresso", "beagle", "water", "steam", "cup")
    return {
        name: small_index(folder / name, words[number:], number)
        for number, name in enumerate(("one", "two"))
    }


def test_a_sparse_query_adds_the_same_to_each_index_own_query(tmp_path: Path) -> None:
    """Variant A: term frequencies are the index's, what phi adds is shared."""
    indexes, phi, names = list(two_indexes(tmp_path).values()), phi_of("A"), names_of()
    kept = kept_tokens(4, [1, 5, 6], 0)
    regions = tuple(
        Region((0, 0, 1, 1), members, ((number, 0.9),), 1.0)
        for number, members in enumerate(((5, 6), (1,)))
    )
    asking = state(kept=kept, regions=regions, question=question("…", "steam"))
    _, queries, flops = SparseQuerier(phi, names, 4)(asking, indexes)
    assert flops > 0
    encoded, _ = encode_queries(names.write(asking), [index.encoder for index in indexes])
    with torch.inference_mode():
        added = phi(region_views(asking, 7), question().embedding)
    for found, named in zip(queries, encoded, strict=True):
        expected = phi.queries((written_out(named, 30_522) + added).relu())
        for one, other in zip(found, expected, strict=True):
            assert np.array_equal(one.terms, other.terms)
            np.testing.assert_allclose(one.weights, other.weights, rtol=1e-4)
    assert any(
        not np.array_equal(one.weights, other.weights) for one, other in zip(*queries, strict=True)
    )


def test_a_new_region_query_asks_what_the_names_ask(pipeline: Pipeline, cup: Region) -> None:
    """At the start of training it finds the same passages, in the same order."""
    torch.manual_seed(0)
    names = ConceptQuerier(RetrieveConfig(), pipeline.backbone)
    num_concepts = len(pipeline.backbone.concepts)
    kept = kept_tokens(4, [0, 1, 5], 0)
    phi = build_region_query(RegionQueryConfig(6, num_concepts, WIDTH)).eval()
    assert isinstance(phi, SparseRegionQuery)
    dog = Region((0.5, 0.5, 1, 1), (5,), ((concept_named(pipeline, "beagle"), 0.8),), 0.5)
    asking = state(
        kept=kept, question=question("…", "pressure"), regions=(cup, dog), budget=Budget(3, 12)
    )
    found = [
        run(Retrieve(querier, pipeline.library, WHOLE), asking)[0].retrieved.passages
        for querier in (names, SparseQuerier(phi, names, 4))
    ]
    assert [one.row for one in found[0]] == [one.row for one in found[1]]
    scores = [[one.score for one in some] for some in found]
    np.testing.assert_allclose(scores[1], scores[0], atol=0.05)


@pytest.mark.parametrize("weights", [{}, {"factbook": 0.5}, {"factbook": 0.0}, {"wordnet": 0.0}])
def test_a_question_may_weight_its_sources(
    pipeline: Pipeline, cup: Region, weights: dict[str, float]
) -> None:
    library = pipeline.library
    querier = ConceptQuerier(RetrieveConfig(), pipeline.backbone)
    stage = Retrieve(querier, library, WHOLE, lambda _: weights)
    asking = state(question=question("…", "brewed"), regions=(cup,), budget=Budget(1, 8))
    leaving, _ = run(stage, asking)
    found = leaving.retrieved.passages
    weight_of = [weights.get(library.name_of(passage.row), 1.0) for passage in found]
    assert min(weight_of) > 0  # at 0 it is not searched
    unweighted = [p.relative / weight for p, weight in zip(found, weight_of, strict=True)]
    assert max(unweighted) == 1
    assert [p.relative for p in found] == sorted((p.relative for p in found), reverse=True)


@pytest.mark.parametrize("skipped", [(), ("factbook",), ("wordnet",)])
def test_the_budget_may_skip_indexes(
    pipeline: Pipeline, cup: Region, skipped: tuple[str, ...]
) -> None:
    budget = Budget(1, 100, skipped_indexes=skipped)
    asking = state(question=question("…", "brewed"), regions=(cup,), budget=budget)
    leaving, _ = run(retrieve.build(pipeline.parts), asking)
    searched = {pipeline.library.name_of(p.row) for p in leaving.retrieved.passages}
    assert searched == set(pipeline.library.names) - set(skipped)


def test_own_documents_count_more_than_general_knowledge(
    pipeline: Pipeline, cup: Region, tmp_path: Path
) -> None:
    own = small_index(tmp_path / "own", ("espresso", "cup"), 0)
    library = Library({**pipeline.library.indexes, "own": own})
    querier = ConceptQuerier(RetrieveConfig(), pipeline.backbone)
    asking = state(question=question("…", "brewed"), regions=(cup,), budget=Budget(1, 100))

    def relative(general: float) -> dict[int, float]:
        config = replace(WHOLE, general_weight=general)
        leaving, _ = run(Retrieve(querier, library, config), asking)
        return {found.row: found.relative for found in leaving.retrieved.passages}

    alike, apart = relative(1.0), relative(0.5)
    weight = {row: 1.0 if library.name_of(row) == "own" else 0.5 for row in alike}
    assert set(weight.values()) == {0.5, 1.0}
    assert apart == {row: score * weight[row] for row, score in alike.items()}


def test_where_no_source_counts_nothing_is_found(pipeline: Pipeline, cup: Region) -> None:
    querier = ConceptQuerier(RetrieveConfig(), pipeline.backbone)
    closed = dict.fromkeys(pipeline.library.names, 0)
    stage = Retrieve(querier, pipeline.library, WHOLE, lambda _: closed)
    asking = state(question=question("…", "brewed"), regions=(cup,), budget=Budget(1, 8))
    leaving, record = run(stage, asking)
    assert leaving.retrieved == Retrieved((), 0, 0)
    assert record.flops == 0


@pytest.mark.parametrize("variant", ["A", "B"])
def test_a_trained_query_is_asked_of_every_index(variant: str, tmp_path: Path) -> None:
    """One query per region, sparse or dense, and the list of a plain merge."""
    opened, phi = two_indexes(tmp_path), phi_of(variant)
    if variant == "A":  # it asks for what the passages say
        known = opened["one"].encoder.encode_terms("espresso beagle water steam cup")
        with torch.no_grad():
            phi.to_terms.bias[known.terms.tolist()] = torch.rand(len(known)) + 1
    kept = kept_tokens(4, [1, 5, 6], 0)
    regions = tuple(Region((0.0, 0.0, 1.0, 1.0), members, (), 1.0) for members in ((5, 6), (1,)))
    querier = (SparseQuerier if variant == "A" else DenseQuerier)(phi, names_of(), 3)
    asking = state(kept=kept, regions=regions, question=question(), budget=Budget(1, 5))
    config = RetrieveConfig(index_sharpness=1.0, excerpt_words=0)
    leaving, record = run(Retrieve(querier, Library(opened), config), asking)
    hits, _, flops = querier(asking, list(opened.values()))
    assert record.flops == flops > 0
    expected = []
    for number, of_index in enumerate(hits):
        base = int(opened["one"].bases[-1]) * number
        best: dict[int, float] = {}
        for hit in itertools.chain(*of_index):
            best[hit.row] = max(hit.score, best.get(hit.row, -np.inf))
        for row, score in best.items():
            expected.append((-max(score, 1e-6), number, -score, base + row))
    found = [(p.row, p.score) for p in leaving.retrieved.passages]
    assert found == [(row, -score) for _, _, score, row in sorted(expected)[:5]]
    assert leaving.retrieved.num_unique == len(expected)


def pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    return list(itertools.permutations(words, 2))
