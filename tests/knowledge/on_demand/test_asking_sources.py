"""All sources together: deadlines, late answers, failures, and names that are asked for once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from misbehaving import Reply, misbehaving

from benchmarks.sparql_endpoint import Triples, serving
from skipqa import assets
from skipqa.errors import UserError
from skipqa.files import write_jsonl
from skipqa.knowledge.index.build import build
from skipqa.knowledge.on_demand import open_sources
from skipqa.knowledge.on_demand.cache import Cache
from skipqa.knowledge.on_demand.source import Answers, SourceFailed, Told
from skipqa.knowledge.on_demand.sources import MOST_AT_ONCE, Sources
from skipqa.knowledge.sources import open_source
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.types import Origin, Passage


class Scripted:
    """Answers by a function, and counts."""

    def __init__(self, name: str, answer: Callable[[str], list[Told]]) -> None:
        self.name, self.answer = name, answer
        self.asked: list[tuple[str, ...]] = []

    @property
    def identity(self) -> str:
        return self.name

    def ask(self, names: Sequence[str]) -> Answers:
        self.asked.append(tuple(names))
        return {name: self.answer(name) for name in names}


def telling(source: str, name: str) -> list[Told]:
    passage = Passage(f"{source}:{name}", name, f"{name} is known to {source}.", source)
    return [Told(passage, Origin(source, name, "now"))]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "told.sqlite")


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.005)


def test_every_source_is_asked_and_then_the_cache(cache: Cache) -> None:
    one = Scripted("one", lambda name: telling("one", name))
    two = Scripted("two", lambda name: telling("two", name) if name == "a" else [])
    sources = Sources([one, two], cache)
    first = sources.ask(["a", "b"], 30.0)
    assert {n: {t.passage.source for t in told} for n, told in first.told.items()} == {
        "a": {"one", "two"},
        "b": {"one"},
    }
    assert (first.cached, first.fetched, first.late, first.warnings) == (0, 4, [], [])
    for source in (one, two):
        until(lambda source=source: len(cache.get(source.identity, ["a", "b"])) == 2)
    again = Sources([one, two], cache).ask(["a", "b"], 30.0)
    assert (again.cached, again.fetched) == (4, 0)
    assert one.asked == two.asked == [("a", "b")]


def test_a_late_answer_is_there_the_next_time(cache: Cache) -> None:
    held = threading.Event()
    slow = Scripted("slow", lambda name: telling("slow", name) if held.wait(10) else [])
    fast = Scripted("fast", lambda name: telling("fast", name))
    Sources([fast], cache).ask(["a"], 30.0)
    until(lambda: cache.get("fast", ["a"]))
    sources = Sources([slow, fast], cache)
    begin = time.monotonic()
    found = sources.ask(["a"], 0.05)
    assert time.monotonic() - begin < 5
    assert found.late == ["a"]
    assert [one.passage.source for one in found.told["a"]] == ["fast"]
    assert sources.ask(["a"], 0.0).late == ["a"], "still under way, and not asked for twice"
    held.set()
    until(lambda: cache.get("slow", ["a"]))
    assert len(sources.ask(["a"], 0.0).told["a"]) == 2
    assert slow.asked == [("a",)]


def test_nobody_waits_for_a_source_that_is_overdue(cache: Cache) -> None:
    held = threading.Event()
    slow = Scripted("slow", lambda name: telling("slow", name) if held.wait(10) else [])
    sources = Sources([slow], cache)
    assert sources.ask(["a"], 0.01).late == ["a"]
    until(lambda: slow.asked)
    begin = time.monotonic()
    assert sources.ask(["b"], 0.0).late == ["b"], "asked for, so that it is there the next time"
    assert sources.ask(["c"], 0.01).late == ["c"]
    assert time.monotonic() - begin < 5
    held.set()
    until(lambda: len(cache.get("slow", ["a", "b", "c"])) == 3)


def test_a_source_that_fails_costs_nothing_but_a_warning(cache: Cache) -> None:
    def fail(name: str) -> list[Told]:
        raise SourceFailed("far cannot be reached: no network")

    far, near = Scripted("far", fail), Scripted("near", lambda name: telling("near", name))
    sources = Sources([far, near], cache)
    found = sources.ask(["a"], 30.0)
    assert found.warnings == ["far cannot be reached: no network"]
    assert len(found.told["a"]) == 1
    assert sources.ask(["b"], 30.0).warnings == ["far failed a moment ago and was not asked"]
    assert len(far.asked) == 1
    assert cache.get("far", ["a"]) == {}, "a failure is no answer"


def test_what_is_no_text_is_not_told(cache: Cache) -> None:
    good = telling("odd", "a")
    half = [Told(Passage("1", "\ud800", "x", "odd"), Origin("odd", "y", "now"))]
    odd = Scripted("odd", lambda name: half + good)
    assert Sources([odd], cache).ask(["a"], 30.0).told == {"a": good}


def test_a_fault_of_ours_is_a_warning_too(cache: Cache) -> None:
    broken = Scripted("broken", lambda name: [][0])
    assert Sources([broken], cache).ask(["a"], 30.0).warnings == ["broken failed: IndexError"]


def test_a_source_that_never_answers_does_not_pile_up_threads(cache: Cache) -> None:
    held = threading.Event()
    stuck = Scripted("stuck", lambda name: telling("stuck", name) if held.wait(10) else [])
    sources = Sources([stuck], cache)
    for n in range(MOST_AT_ONCE):
        assert sources.ask([str(n)], 0.0).warnings == []
    assert sources.ask(["more"], 0.0).warnings == ["stuck is busy and was not asked"]
    held.set()
    until(lambda: len(cache.get("stuck", [str(n) for n in range(MOST_AT_ONCE)])) == MOST_AT_ONCE)


def test_without_sources_there_is_nothing() -> None:
    sources = open_sources([])
    assert not sources
    assert sources.ask(["a"], 1.0).told == {}


def test_a_slow_endpoint_and_a_real_one(cache: Cache) -> None:
    facts = Triples()
    facts.add(["Vizsla"], {"colour": ["rust"]})
    held = threading.Event()
    with serving(facts.store()) as real, misbehaving(Reply(b"{}", held=held)) as slow:
        open_sources([f"sparql:{real}"]).ask(["vizsla"], 30.0)
        until(lambda: Cache.default().get(f"sparql:{real}", ["vizsla"]))
        found = open_sources([f"sparql:{slow}", f"sparql:{real}"]).ask(["vizsla"], 0.05)
        held.set()
    assert found.late == ["vizsla"]
    assert found.told["vizsla"][0].passage.text == "The colour of Vizsla is rust."


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default cache is not ours to fill; what was downloaded is."""
    assets.fetch(assets.MINILM)
    for name in ("assets", "converted"):
        if (assets.home() / name).is_dir():
            (tmp_path / name).symlink_to(assets.home() / name)
    monkeypatch.setenv("SKIPQA_HOME", str(tmp_path))


def test_another_index_is_a_source(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "title": "Vizsla", "text": "The Vizsla comes from Hungary."},
        {"id": "2", "title": "Pointer", "text": "The Vizsla is a pointer."},
    ]
    write_jsonl(tmp_path / "dogs.jsonl", rows)
    build(tmp_path / "dogs", [open_source(str(tmp_path / "dogs.jsonl"))], LexicalEncoder.default())
    sources = open_sources([f"index:{tmp_path / 'dogs'}"])
    found = sources.ask(["vizsla", "nobody"], 10.0)
    ((passage, origin),) = found.told["vizsla"]
    assert (passage.id, origin.source, origin.address) == ("dogs:1", "dogs", "dogs:1")
    assert not found.told["nobody"]


@pytest.mark.parametrize(
    "spec", ["wikipedia", "sparql:", "sparqll:http://e.org", "http://e.org", ""]
)
def test_an_unknown_source_is_one_clear_line(spec: str) -> None:
    with pytest.raises(UserError, match="no knowledge source"):
        open_sources([spec])


def test_an_index_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no index at"):
        open_sources([f"index:{tmp_path / 'nowhere'}"])


def test_wikidata_is_known_by_name() -> None:
    (name,) = open_sources(["wikidata", "wikidata"]).names
    assert name == "wikidata"
