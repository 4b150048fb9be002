"""A library: one numbering over its indexes, and one list of what they find."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_vectors import build_vectors, random_vectors

from skipqa.errors import UserError
from skipqa.knowledge import Index, Library, default
from skipqa.knowledge.index import add, build, compact, delete
from skipqa.knowledge.index.format import VERSION, read_manifest, write_manifest
from skipqa.knowledge.library import RankedHit, SearchedIndex, best_hits, merge, named
from skipqa.knowledge.sources import BUILT_IN
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.text_query import same_length
from skipqa.knowledge.trained_query import QueryNetwork, TrainedQueryEncoder
from skipqa.types import Hit, Passage, SparseVector

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


# One list out

sources = st.lists(
    st.tuples(hits, st.sampled_from([0.0, 0.25, 1.0, 3.0]), st.integers(9, 12)), max_size=4
)


def searched(
    drawn: Sequence[tuple[list[list[Hit]], float, int]],
) -> tuple[list[SearchedIndex], list[list[list[Hit]]]]:
    """The sources of positive weight, as `Library.searched` has them, and their hits."""
    kept, found, base = [], [], 0
    for hits, weight, rows in drawn:
        if weight > 0:
            kept.append(SearchedIndex(cast(Any, None), base, weight))
            found.append(hits)
        base += rows
    return kept, found


@given(sources, st.sampled_from([0.0, 0.5, 1.0]))
def test_the_list_is_that_of_a_plain_merge(
    drawn: list[tuple[list[list[Hit]], float, int]], sharpness: float
) -> None:
    expected, base = [], 0
    top = max((h.score for hits, w, _ in drawn if w > 0 for some in hits for h in some), default=1)
    for number, (hits, weight, rows) in enumerate(drawn):
        every = [(hit, query) for query, found in enumerate(hits) for hit in found]
        for row in {hit.row for hit, _ in every}:
            score = max(hit.score for hit, _ in every if hit.row == row)
            query = min(query for hit, query in every if hit == Hit(row, score))
            among = sum(other > 0 for _, other, _ in drawn[:number])
            own = max(hit.score for hit, _ in every)
            relative = weight * (score / own) * (own / top) ** sharpness
            ranked = RankedHit(base + row, score, relative, query, among)
            if weight > 0:
                expected.append(((-ranked.relative, number, -score, row), ranked))
        base += rows
    assert merge(*searched(drawn), sharpness) == [ranked for _, ranked in sorted(expected)]


@given(sources)
def test_at_0_the_best_of_all_sources_are_equal_and_at_1_scores_decide(
    drawn: list[tuple[list[list[Hit]], float, int]],
) -> None:
    kept, found = searched(drawn)
    kept = [SearchedIndex(source.index, source.base, 1.0) for source in kept]
    flat, sharp = (merge(kept, found, sharpness) for sharpness in (0.0, 1.0))
    assert sum(hit.relative == 1 for hit in flat) >= sum(any(hits) for hits in found)
    scores = [hit.score for hit in sharp]
    assert scores == sorted(scores, reverse=True)
    assert sorted(hit.row for hit in sharp) == sorted(hit.row for hit in flat)


@given(hits)
def test_the_list_of_one_index_is_its_own(hits: list[list[Hit]]) -> None:
    found = merge([SearchedIndex(cast(Any, None), 0, 1.0)], [hits], 0.5)
    assert [(Hit(hit.row, hit.score), hit.query) for hit in found] == best_hits(hits)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=8))
def test_inner_products_of_any_sign_keep_their_order(scores: list[float]) -> None:
    """Of dense queries: the list of one index is its own, and relative scores are positive."""
    hits = [[Hit(row, score) for row, score in enumerate(scores)]]
    found = merge([SearchedIndex(cast(Any, None), 0, 1.0)], [hits], 0.5)
    assert [(hit.score, hit.row) for hit in found] == sorted(
        ((score, row) for row, score in enumerate(scores)), key=lambda pair: (-pair[0], pair[1])
    )
    assert found[0].relative == 1
    assert all(hit.relative > 0 for hit in found)


def test_ties_go_by_the_order_of_the_sources_and_then_by_row() -> None:
    kept = [SearchedIndex(cast(Any, None), base, 1.0) for base in (0, 10)]
    found = [[[Hit(4, 8.0), Hit(3, 8.0), Hit(0, 4.0)]], [[Hit(7, 8.0), Hit(1, 8.0), Hit(2, 4.0)]]]
    assert [hit.row for hit in merge(kept, found, 0.5)] == [3, 4, 11, 17, 0, 12]


def test_a_small_index_is_not_pushed_down_by_a_large_one(
    encoder: LexicalEncoder, tmp_path: Path
) -> None:
    """The idf of every term is low where there are few passages."""
    texts = {
        "small": ["an otter eats fish", "a heron waits"],
        "large": ["an otter swims", *(f"passage {number} of many" for number in range(400))],
    }
    for name, lines in texts.items():
        rows = [json.dumps({"id": str(i), "text": text}) for i, text in enumerate(lines)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
        build(tmp_path / name, [JsonLines(tmp_path / f"{name}.jsonl")], encoder)
    library = Library.open([tmp_path / "large", tmp_path / "small"])
    kept = library.searched({})
    asked = [[source.index.encoder.encode_query("Which fish eats the otter?")] for source in kept]

    def first(queries: list[list[SparseVector]]) -> str:
        hits = [source.index.search(q, 4) for source, q in zip(kept, queries, strict=True)]
        return library.passage(merge(kept, hits, 0.5)[0].row).id

    assert first(asked) == "large:0"
    assert first(same_length(asked)) == "small:0"


# Rows, names, opening


@pytest.fixture
def vectors(tmp_path: Path) -> Library:
    """Three indexes of given vectors; one has deleted rows, two are searched exactly."""
    opened = {}
    for number, (name, count) in enumerate((("a", 40), ("b", 70), ("c", 25))):
        build_vectors(tmp_path / name, random_vectors(count, 12, number), shards=1 + number)
        if name == "b":
            delete(tmp_path / name, ["3", "50"])
        uri = tmp_path / name if name == "a" else f"exact:{tmp_path / name}"
        opened[name] = Index.open(uri)
    return Library(opened)


def test_rows_number_all_indexes_in_order(vectors: Library) -> None:
    assert vectors.bases.tolist() == [0, 40, 110, 135]
    assert len(vectors) == 40 + 68 + 25
    for name, base in zip(vectors.names, vectors.bases.tolist(), strict=False):
        index = vectors.indexes[name]
        for row in (0, 17, int(index.bases[-1]) - 1):
            assert vectors.passage(base + row) == index.passage(row)
            assert vectors.name_of(base + row) == name
            stored, own = vectors.stored_vector(base + row), index.stored_vector(row)
            assert stored.weights.tolist() == own.weights.tolist()
    for row in (-1, 135):
        with pytest.raises(IndexError, match="of a library of 135 rows"):
            vectors.passage(row)


def test_a_row_is_found_by_id_in_the_first_index_that_has_it(vectors: Library) -> None:
    assert vectors.row_of("5") == 5
    only_in_b = vectors.row_of("60")
    assert only_in_b is not None
    assert vectors.name_of(only_in_b) == "b"
    assert vectors.passage(only_in_b).id == "60"
    assert vectors.row_of("50") is None
    assert vectors.row_of("999") is None


WEIGHTS = st.dictionaries(st.sampled_from("abcz"), st.sampled_from([0.0, 0.5, 1.0, 2.0]))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(weights=WEIGHTS, seed=st.integers(0, 5), k=st.integers(1, 6))
def test_engines_may_differ_and_a_weight_of_zero_is_not_searched(
    vectors: Library, weights: Mapping[str, float], seed: int, k: int
) -> None:
    queries = random_vectors(3, 12, 100 + seed)
    kept = vectors.searched(weights)
    names = [name for name in vectors.names if weights.get(name, 1.0) > 0]
    assert [source.index for source in kept] == [vectors.indexes[name] for name in names]
    found = merge(kept, [source.index.search(queries, k) for source in kept], 0.5)
    assert {vectors.name_of(hit.row) for hit in found} == set(names)
    for hit in found:
        name = vectors.name_of(hit.row)
        stored = vectors.stored_vector(hit.row)
        assert hit.score == pytest.approx(product(queries[hit.query], stored), rel=1e-4)
        assert 0 < hit.relative <= weights.get(name, 1.0)


def product(one: SparseVector, other: SparseVector) -> float:
    _, a, b = np.intersect1d(one.terms, other.terms, return_indices=True)
    return float(one.weights[a] @ other.weights[b])


def test_names_are_as_short_as_they_can_be(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("x/index", "y/index", "notes"))
    assert named([three]) == {"notes": three}
    assert list(named([one, f"exact:{two}", three])) == ["x/index", "y/index", "notes"]
    with pytest.raises(UserError, match="is given twice"):
        named([three, f"exact:{tmp_path / 'x' / '..' / 'notes'}"])
    with pytest.raises(UserError, match="at least one index"):
        named([])


def test_encoders_may_differ(
    corpus: Path, built: Path, encoder: LexicalEncoder, tmp_path: Path
) -> None:
    """An index with a trained encoder of its own keeps it; the other has none."""
    delta = tmp_path / "weights"
    delta.write_bytes(b"of a network that is not read here")
    trained = TrainedQueryEncoder(encoder.vocabulary, QueryNetwork(delta))
    build(tmp_path / "learned", [JsonLines(corpus)], trained)
    build(tmp_path / "again", [JsonLines(corpus)], trained)
    library = Library.open([built, tmp_path / "learned", tmp_path / "again"])
    plain, one, two = (index.encoder for index in library.indexes.values())
    assert isinstance(plain, LexicalEncoder)
    assert not plain.encodes_whole_questions
    assert one.encodes_whole_questions
    # Equal files, of which each index holds a copy, are opened once.
    assert isinstance(one, TrainedQueryEncoder)
    assert one.network is two.network
    assert one.vocabulary is plain.vocabulary
    with_given = Library.open([built, tmp_path / "learned"], trained_query=delta)
    shared = [index.encoder.network for index in with_given.indexes.values()]
    assert shared[0] is shared[1]


def test_a_built_in_corpus_is_in_one_index(
    encoder: LexicalEncoder, built: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "wordnet.jsonl"
    corpus.write_text('{"id": "1", "text": "a dog"}\n')
    for name in ("one", "two"):
        build(tmp_path / name, [JsonLines(corpus)], encoder)
    assert Library.open([tmp_path / "one", built]).names == ("one", "animals")
    with pytest.raises(UserError, match="wordnet is in the index one and in two"):
        Library.open([tmp_path / "one", built, tmp_path / "two"])


# The default library


@pytest.fixture
def two_corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without indexes, and two small corpora in place of the real ones."""
    made = {}
    for name, text in (("birds", "eagles fly high"), ("drinks", "drinks are brewed")):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(json.dumps({"id": "1", "title": name, "text": text}) + "\n")
        made[name] = MadeCorpus(path)
    monkeypatch.setattr(default, "BUILT_IN", made)
    monkeypatch.setattr(default, "DEFAULT_SOURCES", tuple(made))
    encoder = LexicalEncoder.default()
    monkeypatch.setattr(default.LexicalEncoder, "default", lambda: encoder)
    monkeypatch.setenv("SKIPQA_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "indexes"


class MadeCorpus:
    passages, licence = 5, "ours"

    def __init__(self, path: Path) -> None:
        self.path, self.opened, self.reason = path, 0, ""

    def fetch(self, report: Callable[[str], None]) -> Path:
        report(f"reading {self.path.name}")
        if self.reason:
            raise UserError(self.reason)
        return self.path

    def open(self) -> JsonLines:
        self.opened += 1
        return JsonLines(self.path)


def test_own_documents_are_told_from_general_knowledge(
    encoder: LexicalEncoder, tmp_path: Path
) -> None:
    """By what an index was built from, not by where it lies or how it is called."""
    opened = []
    for number, source in enumerate(("wordnet", "wikipedia", "notes")):
        made = JsonLines(_write(tmp_path / f"{number}.jsonl"))
        made.name = source
        build(tmp_path / str(number), [made], encoder)
        opened.append(tmp_path / str(number))
    assert not Library.open(opened[:2]).has_own_documents
    assert Library.open(opened[2:]).has_own_documents
    assert Library.open(opened).has_own_documents
    # General knowledge counts less next to them, and as much as ever without.
    assert set(Library.open(opened[:2]).weights(0.5).values()) == {1.0}
    assert set(Library.open(opened[2:]).weights(0.5).values()) == {1.0}
    assert Library.open(opened).weights(0.5) == {"0": 0.5, "1": 0.5, "2": 1.0}


def test_what_was_built_as_general_knowledge_stays_so_until_own_documents_are_added(
    encoder: LexicalEncoder, tmp_path: Path
) -> None:
    def own() -> list[str]:
        library = Library.open([folder])
        (index,) = library.indexes.values()
        assert library.has_own_documents == bool(index.own_sources)
        return index.own_sources

    folder = tmp_path / "i"
    wiki = JsonLines(_write(tmp_path / "simplewiki.jsonl"))
    more = JsonLines(_write(tmp_path / "wiktionary.jsonl"))
    notes = JsonLines(_write(tmp_path / "notes.jsonl"))
    build(folder, [wiki], encoder)
    assert own() == ["simplewiki"]
    build(folder, [wiki], encoder, general=True)
    assert own() == []
    add(folder, [wiki])  # the corpus that it has
    add(folder, [more], general=True)
    compact(folder)
    delete(folder, ["wiktionary:1"])
    assert own() == []
    add(folder, [notes, more])
    assert own() == ["notes"]
    compact(folder)
    assert own() == ["notes"]
    add(folder, [notes], general=True)
    assert own() == []
    build(folder, [wiki], encoder)  # a new index, and nothing was said of it
    assert own() == ["simplewiki"]


def test_an_index_that_does_not_say_what_is_general_is_read_as_before(
    encoder: LexicalEncoder, tmp_path: Path
) -> None:
    """Releases without the option wrote no such field."""
    for name in ("wordnet", "notes"):
        build(tmp_path / name, [JsonLines(_write(tmp_path / f"{name}.jsonl"))], encoder)
        manifest = read_manifest(tmp_path / name)
        del manifest["corpus"]["general"]
        write_manifest(tmp_path / name, manifest)
    assert not Library.open([tmp_path / "wordnet"]).has_own_documents
    assert Library.open([tmp_path / "notes"]).has_own_documents
    add(tmp_path / "notes", [JsonLines(tmp_path / "notes.jsonl")], general=True)
    assert not Library.open([tmp_path / "notes"]).has_own_documents


def _write(path: Path) -> Path:
    path.write_text(json.dumps({"id": "1", "title": "tea", "text": "tea is brewed"}) + "\n")
    return path


def test_the_default_library_has_an_index_for_each_corpus(two_corpora: Path) -> None:
    with pytest.raises(UserError, match="of birds and drinks is not built yet: run `skipqa setup`"):
        Library.open(["default"])
    steps: list[tuple[str, int, int | None]] = []
    default.build_default(default.unbuilt(), lambda *step: steps.append(step))
    assert sorted(path.name for path in two_corpora.iterdir()) == [
        f"{name}-{VERSION}" for name in ("birds", "drinks")
    ]
    assert {step.partition(":")[0] for step, _, _ in steps} == {"birds", "drinks"}
    assert all(total is not None for _, _, total in steps)
    library = Library.open(["default"])
    assert library.names == ("birds", "drinks")
    assert library.passage(1) == Passage("drinks:1", "drinks", "drinks are brewed", "drinks")
    with pytest.raises(UserError, match="is given twice"):
        named(["default", two_corpora / f"birds-{VERSION}"])


def test_what_is_built_is_not_built_again(two_corpora: Path) -> None:
    default.build_default(default.unbuilt())
    (two_corpora / f"drinks-{VERSION}" / "manifest.json").unlink()  # as a kill leaves it
    assert default.unbuilt() == ("drinks",)
    default.build_default(default.unbuilt())
    opened = {name: cast(Any, one).opened for name, one in default.BUILT_IN.items()}
    assert opened == {"birds": 1, "drinks": 2}
    assert default.unbuilt() == ()


def test_an_optional_corpus_is_in_the_library_once_it_is_built(
    two_corpora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default, "OPTIONAL", ("drinks",))
    default.build_default(["birds"])
    assert Library.open(["default"]).names == ("birds",)
    assert default.unbuilt() == ("drinks",)
    default.build_default(["drinks"])
    assert Library.open(["default"]).names == ("birds", "drinks")


def test_a_download_may_fail_of_an_optional_corpus_alone(
    two_corpora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cast(Any, default.BUILT_IN["drinks"]).reason = "no connection"
    with pytest.raises(UserError, match="no connection"):
        default.fetch_sources(["birds", "drinks"], print)
    monkeypatch.setattr(default, "OPTIONAL", ("drinks",))
    assert default.fetch_sources(["birds", "drinks"], print) == {"drinks": "no connection"}


def test_sizes_before_and_after_a_build(two_corpora: Path) -> None:
    default.build_default(["birds"])
    size = default.built_index("birds")
    files = (two_corpora / f"birds-{VERSION}").rglob("*")
    assert (size.passages, size.licence) == (1, "ours")
    assert size.bytes == sum(path.stat().st_size for path in files if path.is_file())
    assert default.expected_index("birds").licence == "ours"
    for name, built_in in BUILT_IN.items():
        assert built_in.licence
        assert built_in.megabytes > 0, name


def test_an_index_of_ones_own_next_to_the_default_library(
    two_corpora: Path, built: Path, tmp_path: Path
) -> None:
    default.build_default(default.unbuilt())
    assert Library.open(["default", built]).names == ("birds", "drinks", "animals")
    (tmp_path / "mine").mkdir()
    clash = tmp_path / "mine" / "birds"
    assert list(named([clash, "default"])) == ["mine/birds", "default/birds", "drinks"]


def test_an_index_of_an_earlier_release_is_named_and_not_used(two_corpora: Path) -> None:
    assert default.superseded() is None
    (two_corpora / default.POOLED).mkdir(parents=True)
    assert default.superseded() == two_corpora / default.POOLED
    assert default.unbuilt() == ("birds", "drinks")
