"""consult: who is asked, what joins, and that nothing changes where nobody is asked."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sparql_endpoint import Triples, serving
from skipqa.cli.ask import show
from skipqa.evaluation.systems import build
from skipqa.knowledge.on_demand.cache import Cache
from skipqa.knowledge.on_demand.source import Answers, SourceFailed
from skipqa.knowledge.on_demand.sources import Sources
from skipqa.knowledge.on_demand.sparql import SparqlSource
from skipqa.pipeline import Answer, Pipeline
from skipqa.stages.consult import inner, joined
from skipqa.state import State
from skipqa.text_only import text_only
from skipqa.trace import Trace
from skipqa.types import Origin, Retrieved, RetrievedPassage, SparseVector

QUESTION = "How is this drink brewed?"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    facts = Triples()
    facts.add(["espresso"], {"brewing method": ["steam under pressure"], "instance of": ["drink"]})
    facts.add(["Acme Rocket Company"], {"founder": ["Wile E. Coyote"], "instance of": ["firm"]})
    with serving(facts.store()) as url:
        yield url


@pytest.fixture
def consulting(pipeline: Pipeline, endpoint: str, tmp_path: Path) -> Pipeline:
    sources = Sources([SparqlSource(endpoint, "facts")], Cache(tmp_path / "told.sqlite"))
    return pipeline.with_sources(sources).with_config(consult={"deadline_ms": 60_000})


@pytest.fixture(scope="module")
def retrieved(pipeline: Pipeline, photo: Path) -> State:
    return pipeline.run(State(photo, QUESTION), stop="retrieve")


def test_what_is_thinly_covered_is_asked_for_and_read_like_the_rest(
    consulting: Pipeline, retrieved: State
) -> None:
    trace = Trace()
    state = consulting.run(retrieved, start="consult", trace=trace)
    assert "espresso" in state.consulted.unknown
    told = [one for one in state.retrieved.passages if one.origin is not None]
    assert told
    assert {one.row for one in told} == {-1}
    assert all(one.origin is not None and one.origin.source == "facts" for one in told)
    assert trace["consult"].kept == len(told)
    assert len(state.retrieved.passages) <= state.budget.passages
    relative = [one.relative for one in state.retrieved.passages]
    assert relative == sorted(relative, reverse=True)
    assert max(relative) == pytest.approx(1.0)
    again = consulting.run(retrieved, start="consult", stop="consult")
    assert again.retrieved == state.retrieved, "from the cache or while it is written"


def test_provenance_is_in_all_that_is_shown(
    consulting: Pipeline, retrieved: State, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = Trace()
    everything = consulting.with_config(verify={"threshold": 0.0})
    state = everything.run(retrieved, start="consult", trace=trace)
    answer = Answer(state, "full", trace, everything.parts)
    (passage,) = [p for p in answer.outline()["passages"] if p.get("origin")]
    assert passage["index"] == "facts"
    assert passage["origin"]["address"].startswith("http://www.wikidata.org/entity/Q")
    (evidence,) = [e for e in json.loads(json.dumps(answer.as_dict()))["evidence"] if "origin" in e]
    assert evidence["origin"]["source"] == "facts"
    assert passage["origin"]["address"] in answer._repr_html_()
    show(answer)
    assert "asked 20" in re.sub(r"[│\s]+", " ", capsys.readouterr().out)


def test_a_question_without_an_image_names_things_itself(consulting: Pipeline) -> None:
    asked = text_only(consulting)
    answer = asked.answer(None, "Who founded the Acme Rocket Company?")
    assert answer.state.consulted.unknown == ("Acme Rocket Company",)
    assert any(e.origin is not None for e in answer.evidence)


def test_without_a_source_not_a_bit_changes(pipeline: Pipeline, retrieved: State) -> None:
    state = pipeline.run(retrieved, start="consult", stop="consult", trace=(trace := Trace()))
    assert state.retrieved is retrieved.retrieved
    assert (trace["consult"].kept, trace["consult"].flops) == (None, 0)
    assert trace["consult"].why == "no source to ask"


def test_where_no_index_was_searched_queries_are_written(
    consulting: Pipeline, retrieved: State
) -> None:
    skipped = dataclasses.replace(retrieved.budget, skipped_indexes=consulting.library.names)
    nothing = retrieved.add(budget=skipped, retrieved=Retrieved((), 0, 0))
    state = consulting.run(nothing, start="consult", stop="consult")
    usual = consulting.run(retrieved, start="consult", stop="consult")
    assert state.retrieved.passages == state.consulted.told[: state.budget.passages]
    for one, other in zip(state.consulted.told, usual.consulted.told, strict=True):
        assert one.passage == other.passage
        assert one.score == pytest.approx(other.score)


class Refusing:
    name = identity = "refusing"

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def ask(self, names: Sequence[str]) -> Answers:
        self.asked.append(tuple(names))
        raise SourceFailed("refusing cannot be reached: no network")


@pytest.fixture
def refusing() -> Refusing:
    return Refusing()


def offline(pipeline: Pipeline, source: Refusing, folder: Path) -> Pipeline:
    return pipeline.with_sources(Sources([source], Cache(folder / "told.sqlite")))


def test_offline_nothing_is_lost(
    pipeline: Pipeline, retrieved: State, refusing: Refusing, tmp_path: Path
) -> None:
    system = offline(pipeline, refusing, tmp_path)
    state = system.run(retrieved, start="consult", stop="consult", trace=(trace := Trace()))
    assert state.retrieved == retrieved.retrieved
    assert state.consulted.warnings == ("refusing cannot be reached: no network",)
    assert "no network" in trace["consult"].why


def test_what_is_covered_is_not_asked_for(
    pipeline: Pipeline, retrieved: State, refusing: Refusing, tmp_path: Path
) -> None:
    system = offline(pipeline, refusing, tmp_path).with_config(consult={"covered": 0})
    state = system.run(retrieved, start="consult", stop="consult", trace=(trace := Trace()))
    assert refusing.asked == []
    assert state.consulted.names
    assert state.consulted.unknown == ()
    assert trace["consult"].why.endswith("names, all known")


def test_a_question_that_is_not_looked_up_asks_nobody(
    pipeline: Pipeline, retrieved: State, refusing: Refusing, tmp_path: Path
) -> None:
    closed = dataclasses.replace(retrieved.budget, passages=0)
    system = offline(pipeline, refusing, tmp_path)
    system.run(retrieved.add(budget=closed), start="consult", stop="consult")
    assert refusing.asked == []


def test_skip_answers_alone_and_skip_adr_with_sources(consulting: Pipeline) -> None:
    assert not build("skip", consulting).sources
    assert not build("dense", consulting).sources
    assert build("skip-adr", consulting).sources is consulting.sources


VECTORS = st.dictionaries(st.integers(0, 20), st.floats(0.1, 9), max_size=6)


@given(VECTORS, VECTORS)
def test_the_inner_product_of_sparse_vectors(one: dict[int, float], two: dict[int, float]) -> None:
    def vector(weights: dict[int, float]) -> SparseVector:
        terms = sorted(weights)
        return SparseVector(
            np.array(terms, np.int32), np.array([weights[t] for t in terms], np.float32)
        )

    expected = sum(one[t] * two[t] for t in one.keys() & two.keys())
    assert inner(vector(one), vector(two)) == pytest.approx(expected, rel=1e-4)


SCORES = st.lists(st.floats(0, 30), max_size=6)


@given(SCORES, SCORES, st.floats(0, 1), st.integers(1, 8))
def test_joining_ranks_as_one_more_index(
    found: list[float], told: list[float], sharpness: float, most: int
) -> None:
    def passages(scores: list[float], origin: Origin | None) -> tuple[RetrievedPassage, ...]:
        best = max([*scores, 1e-6])
        ranked = sorted(scores, reverse=True)
        return tuple(
            dataclasses.replace(
                synthetic.retrieved_passage(row, score=score, best=best), origin=origin
            )
            for row, score in enumerate(ranked)
        )

    before = Retrieved(passages(found, None), len(found), len(found))
    elsewhere = passages(told, Origin("facts", "http://e.org", "now"))
    after = joined(before, elsewhere, sharpness, most)
    if not told:
        assert after is before
        return
    relative = [one.relative for one in after.passages]
    assert len(relative) == min(most, len(found) + len(told))
    assert relative == sorted(relative, reverse=True)
    assert relative[0] == pytest.approx(1.0, abs=1e-6)
    # Those of the library keep their order
    own = [one.row for one in after.passages if one.origin is None]
    assert own == sorted(own)
