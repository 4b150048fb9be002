"""Any JSON API by a template and paths, and what its replies may be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from misbehaving import Reply, misbehaving

from skipqa.errors import UserError
from skipqa.knowledge.on_demand.json_source import JsonSource, at
from skipqa.knowledge.on_demand.source import SourceFailed, Told

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcde"), inner, max_size=3)
    ),
    max_leaves=8,
)


def told(reply: object, fields: str, name: str = "Vizsla") -> list[Told]:
    with misbehaving(Reply(json.dumps(reply).encode())) as url:
        return list(JsonSource(f"{url}?q={{name}}#{fields}").ask([name])[name])


def test_a_search_of_entities_as_wikidata_has_it() -> None:
    reply = {
        "search": [
            {"id": "Q38", "label": "Vizsla", "description": "dog breed from Hungary"},
            {"id": "Q39", "label": "Vizsla (ship)", "description": "ship"},
        ]
    }
    ((passage, origin),) = told(reply, "items=search&label=label&text=description&id=id")
    assert passage.text == "Vizsla: dog breed from Hungary."
    assert passage.id.endswith(":Q38:1")
    assert origin.source == passage.source


def test_a_page_summary_is_one_thing_with_its_address() -> None:
    page = {"title": "Vizsla", "extract": "A hunting dog.", "urls": {"page": "https://e.org/V"}}
    ((passage, origin),) = told(page, "label=title&text=extract&id=urls.page")
    assert passage.text == "Vizsla: A hunting dog."
    assert origin.address == "https://e.org/V"


def test_facts_of_an_object() -> None:
    facts = {"country": "Hungary", "colours": ["gold", "rust"], "height": 64, "odd": {"x": 1}}
    ((passage, _),) = told({"facts": facts}, "facts=facts")
    assert passage.text == (
        "The country of Vizsla is Hungary. Its colours is gold and rust. Its height is 64."
    )


def test_a_name_is_quoted_in_the_address() -> None:
    reply = Reply(b"{}")
    with misbehaving(reply) as url:
        JsonSource(f"{url}?q={{name}}#text=x").ask(["a&b=c/../d #é"])
    assert reply.asked == ["/sparql?q=a%26b%3Dc%2F..%2Fd%20%23%C3%A9"]


def test_a_key_comes_from_the_environment_and_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KNOWLEDGE_KEY", "secret/1")
    reply = Reply(b"no json")
    with misbehaving(reply) as url:
        source = JsonSource(f"{url}?q={{name}}&key=$KNOWLEDGE_KEY#text=x")
        with pytest.raises(SourceFailed) as failed:
            source.ask(["x"])
    assert reply.asked == ["/sparql?q=x&key=secret%2F1"]
    assert "secret" not in f"{failed.value} {source.name} {source.identity}"


@given(JSON)
def test_any_reply_is_read_or_left(reply: Any) -> None:
    source = JsonSource("http://e.org/{name}#items=a&label=b&text=c&facts=d.0&id=e")
    for item in (reply, [reply], {"a": reply}):
        found = at(item, "a")
        for one in found if isinstance(found, list) else ():
            assert isinstance(source._text(one, "text"), str)
            assert isinstance(source._statements(one), list)


@pytest.mark.parametrize("reply", [None, 7, [], {"search": 7}, {"search": [None, 7, "x", {}]}])
def test_other_shapes_are_no_facts(reply: object) -> None:
    assert told(reply, "items=search&label=label&text=text") == []


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("http://e.org/", "no {name}"),
        ("http://e.org/{name}", "text= or its facts="),
        ("http://e.org/{name}#text=a&lable=b", "did you mean label"),
        ("ftp://e.org/{name}#text=a", "no address"),
        ("http://e.org/{name}?k=$NOT_SET_ANYWHERE#text=a", "not set"),
    ],
)
def test_what_is_missing_is_said_when_it_is_opened(spec: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        JsonSource(spec)
    assert said in str(refused.value)
