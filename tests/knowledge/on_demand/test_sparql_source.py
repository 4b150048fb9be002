"""A SPARQL source against a real engine, and against endpoints that misbehave."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from misbehaving import Reply, misbehaving
from pyoxigraph import Store

from benchmarks.sparql_endpoint import Triples, serving
from skipqa.errors import UserError
from skipqa.knowledge.on_demand import http
from skipqa.knowledge.on_demand.source import SourceFailed
from skipqa.knowledge.on_demand.sparql import SparqlSource, cases, literal, query_for

THINGS = frozenset({"country of origin", "instance of"})


def triples() -> Triples:
    facts = Triples()
    facts.add(
        ["Vizsla", "Hungarian pointer"],
        {"instance of": ["dog breed"], "country of origin": ["Hungary"], "colour": ["rust"]},
        "dog from Hungary",
        THINGS,
    )
    facts.add(["Ragdoll"], {"instance of": ["cat breed"]}, things=THINGS)
    facts.add(["Ragdoll"], {"instance of": ["film"], "year": ["1999"]}, things=THINGS)
    facts.add(["Ragdoll"], {"year": ["2001"], "length": ["3"], "genre": ["punk"]})
    return facts


@pytest.fixture(scope="module")
def store() -> Store:
    return triples().store()


@pytest.fixture(scope="module")
def source(store: Store) -> Iterator[SparqlSource]:
    with serving(store) as url:
        yield SparqlSource(url, "facts")


def test_claims_become_sentences_with_their_address(source: SparqlSource) -> None:
    ((passage, origin),) = source.ask(["vizsla"])["vizsla"]
    assert passage.title == "Vizsla"
    assert passage.text == (
        "Vizsla: dog from Hungary. It is a dog breed. Its colour is rust. "
        "Its country of origin is Hungary."
    )
    assert passage.id == "facts:Q1:1"
    assert (passage.source, origin.source) == ("facts", "facts")
    assert origin.address == "http://www.wikidata.org/entity/Q1"
    assert origin.asked.endswith("Z")


@pytest.mark.parametrize("name", ["Vizsla", "VIZSLA", "hungarian pointer", "Hungarian Pointer"])
def test_labels_and_aliases_in_any_case(source: SparqlSource, name: str) -> None:
    assert source.ask([name])[name]


def test_of_several_things_of_one_name_those_with_most_to_say(source: SparqlSource) -> None:
    told = source.ask(["Ragdoll", "nobody"])
    assert told["nobody"] == []
    addresses = list(dict.fromkeys(one.origin.address for one in told["Ragdoll"]))
    assert len(addresses) == 2
    assert "genre of Ragdoll is punk" in told["Ragdoll"][0].passage.text


def test_several_names_are_one_query(source: SparqlSource) -> None:
    told = source.ask(["vizsla", "Ragdoll"])
    assert all(told.values())


NAMES = st.text(max_size=40)


@given(NAMES)
def test_a_name_is_one_literal_whatever_is_in_it(text: str) -> None:
    (found,) = Store().query(f"SELECT ({literal(text)} AS ?x) WHERE {{}}")
    plain = "".join(c if c.isprintable() and c != "\\" else " " for c in text)
    assert found["x"].value == " ".join(plain.split())
    assert found["x"].language == "en"


@pytest.mark.parametrize(
    "name",
    [
        'x"@en } ?s ?p ?o . { "',
        '"} UNION {?thing ?direct ?object} #',
        "a\nb\\",
        "\\u0022@en } #",
        "{name}",
        "'''",
        "<http://example.org>",
    ],
)
def test_a_name_cannot_change_the_query(source: SparqlSource, name: str) -> None:
    assert source.ask([name, "vizsla"])[name] == []
    shape = "".join(query_for([name]).split()).count("VALUES")
    assert shape == 2


@given(NAMES)
def test_cases_hold_the_name_itself(name: str) -> None:
    assert cases(name)[0] == name
    assert len(cases(name)) <= 4


def test_only_labels_dates_and_numbers_are_values() -> None:
    def cell(value: str, **more: str) -> dict[str, str]:
        return {"type": "literal", "value": value, **more}

    row = {
        "name": cell("x", **{"xml:lang": "en"}),
        "thing": {"type": "uri", "value": "http://e.org/x"},
        "label": cell("X"),
    }
    stated = [
        ("born", cell("1889-03-31T00:00:00Z")),
        ("height", cell("+69.0")),
        ("width", cell("1.5")),
        ("unnamed", {"type": "uri", "value": "http://e.org/y"}),
        ("german", cell("Hund", **{"xml:lang": "de"})),
    ]
    rows = [{**row, "property": cell(name), "value": value} for name, value in stated]
    odd: list[object] = [None, 7, {}, {"value": 7}, {"value": {"value": 7}}, [], "row"]
    body = json.dumps({"results": {"bindings": [*rows, *odd]}}).encode()
    with misbehaving(Reply(body)) as url:
        ((passage, _),) = SparqlSource(url, "facts").ask(["x"])["x"]
    assert passage.text == "The born of X is 1889-03-31. Its height is 69. Its width is 1.5."


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b"null",
        b'{"results": []}',
        b'{"results": {"bindings": {}}}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_garbage_is_a_failure_of_one_line(body: bytes) -> None:
    with misbehaving(Reply(body)) as url, pytest.raises(SourceFailed) as failed:
        SparqlSource(url).ask(["x"])
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize("status", [301, 302, 403, 429, 500])
def test_other_statuses_are_failures(status: int) -> None:
    location = {"Location": "http://127.0.0.1:1/elsewhere"}
    with misbehaving(Reply(b"{}", status, location)) as url, pytest.raises(SourceFailed) as failed:
        SparqlSource(url).ask(["x"])
    assert str(status) in str(failed.value)


def test_a_reply_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BYTES", 1 << 16)
    with misbehaving(Reply(b" " * (1 << 18))) as url, pytest.raises(SourceFailed):
        SparqlSource(url).ask(["x"])


def test_a_slow_reply_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_SECONDS", 0.1)
    with misbehaving(Reply(b"{}", drip=True)) as url, pytest.raises(SourceFailed, match="longer"):
        SparqlSource(url).ask(["x"])


def test_an_endpoint_that_dies_in_the_middle() -> None:
    with misbehaving(Reply(b"{}", promised=1_000)) as url, pytest.raises(SourceFailed):
        SparqlSource(url).ask(["x"])


def test_no_network_at_all() -> None:
    with misbehaving(Reply(b"{}")) as url:
        gone = url
    with pytest.raises(SourceFailed, match="cannot be reached"):
        SparqlSource(gone).ask(["x"])


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/sparql",
        "file:///etc/passwd",
        "example.org",
        "http://",
        "http://user:secret@example.org/",
        "http://example.org:99999/",
        "http://[::1/",
        "",
    ],
)
def test_an_address_is_checked_when_it_is_given(url: str) -> None:
    with pytest.raises(UserError) as refused:
        SparqlSource(url)
    assert "secret" not in str(refused.value)
