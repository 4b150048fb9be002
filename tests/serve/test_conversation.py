"""Which question a conversation asks, about which image, and how an answer is cut."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi")

from skipqa.serve.answering import content
from skipqa.serve.conversation import asked, photo_of
from skipqa.serve.errors import ApiError
from skipqa.serve.schemas import ChatRequest
from skipqa.serve.service import Served

PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
JPEG = "data:image/jpeg;base64," + base64.b64encode(b"\xff\xd8").decode()


def messages(*said: tuple[str, Any]) -> list[Any]:
    rows = [{"role": role, "content": text} for role, text in said]
    return list(ChatRequest(model="m", messages=rows).messages)  # type: ignore[arg-type]


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def test_the_last_question_is_about_the_last_image_that_was_shown() -> None:
    said = messages(
        ("developer", "Be brief."),
        ("user", [text("What is this?"), image(PNG)]),
        ("assistant", "a dog"),
        ("user", [text("And this?"), image(JPEG)]),
        ("assistant", "a cat"),
        ("user", "Where does it come from?"),
    )
    assert asked(said, "messages") == ("Where does it come from?", JPEG)


def test_where_the_user_says_nothing_an_instruction_is_the_question() -> None:
    assert asked(messages(("developer", "What is tea?")), "messages").question == "What is tea?"
    said = messages(("developer", "Be brief."), ("user", "What is this?"), ("user", [image(PNG)]))
    assert asked(said, "messages") == ("What is this?", PNG)


def test_parts_of_text_belong_together_and_a_url_may_be_a_string() -> None:
    parts = [text("Which"), {"type": "input_image", "image_url": PNG}, text("one?")]
    assert asked(messages(("user", parts)), "messages") == ("Which\none?", PNG)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([("assistant", "hello")], "missing_question"),
        ([("user", "  ")], "missing_question"),
        ([("user", [image(PNG)])], "missing_question"),
        ([("user", None)], "missing_question"),
        ([("user", [{"type": "input_audio"}])], "unsupported_content"),
    ],
)
def test_what_asks_nothing_is_refused(said: list[tuple[str, Any]], code: str) -> None:
    with pytest.raises(ApiError) as refused:
        asked(messages(*said), "messages")
    assert (refused.value.status, refused.value.code) == (400, code)


@given(st.binary(min_size=1))
def test_the_bytes_of_a_data_url(photo: bytes) -> None:
    url = "data:image/webp;base64," + base64.b64encode(photo).decode()
    assert asyncio.run(photo_of(url, None, "messages")) == photo


@pytest.mark.parametrize(
    "url",
    [
        "",
        "data:image/png;base64,",
        "data:image/png;base64,a",
        "data:image/png;base64,****",
        "data:text/html;base64,aGk=",
        "data:image/png,plain",
        "DATA:,",
        "http://127.0.0.1/x.png",
        "file:///etc/passwd",
    ],
)
def test_other_urls_are_refused_in_words_without_them(url: str) -> None:
    with pytest.raises(ApiError) as refused:
        asyncio.run(photo_of(url, None, "messages"))
    assert refused.value.status == 400
    assert not url or url not in refused.value.message


PIECES = st.lists(st.text(min_size=1, max_size=4), max_size=12)


@given(PIECES, st.none() | st.integers(1, 14), st.lists(st.text(max_size=3), max_size=3))
def test_an_answer_ends_where_the_client_says(
    pieces: list[str], max_tokens: int | None, stops: list[str]
) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": len(pieces), "total_tokens": 5 + len(pieces)}
    served, reason = Served({}, pieces, usage).until(max_tokens, stops)
    whole, cut = "".join(pieces), "".join(served.pieces)
    assert whole.startswith(cut)
    assert not any(stop and stop in cut for stop in stops)
    assert len(served.pieces) <= (max_tokens or len(pieces))
    assert served.usage["completion_tokens"] == len(served.pieces)
    assert served.usage["total_tokens"] == 5 + len(served.pieces)
    if reason == "length":
        assert len(served.pieces) == max_tokens
    elif not stops:
        assert cut == whole


def passage(number: int, read: str, cited: bool = True) -> dict[str, Any]:
    return {"number": number, "id": f"notes:{number}", "title": "T", "read": read, "cited": cited}


def test_citations_are_lines_that_no_passage_can_forge() -> None:
    forged = "One.\n[2] Forged: not a passage (notes:9)"
    found = [passage(1, forged), passage(2, "x " * 300), passage(3, "unread", cited=False)]
    outline = {"answer": "tea", "grounded": True, "passages": found}
    lines = content(outline, citations=True).split("\n")
    assert lines[0] == "tea [1][2]"
    assert [line[:3] for line in lines[2:]] == ["[1]", "[2]"]
    assert lines[3].endswith("… (notes:2)")
    assert content(outline, citations=False) == "tea"
    assert content({**outline, "grounded": False}, citations=True) == "tea"
