"""What clients of OpenAI's API and our own read from a real server.

A fast selection of what `python -m tools.suites` runs at length: the OpenAI client where it is
installed, requests as known clients send them, the grammar of streams, `skipqa.Client`, and
prompted mode, to which this server is one like any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("fastapi")

from skipqa.client import Client
from skipqa.knowledge import Library
from skipqa.knowledge.index import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.prompted import Endpoint, EndpointError, LevelBudget, Prompted, PromptedConfig
from tools.suites import replay
from tools.suites.photo import data_url, photo
from tools.suites.server import KEY, MODEL, Running, running

QUESTION = "What colour is the ball?"
CITED = "What is a beagle?"  # its answer has citations, so many tokens
ASKED: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": QUESTION},
            {"type": "image_url", "image_url": {"url": data_url()}},
        ],
    }
]


@pytest.fixture(scope="module")
def server(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("served")) as server:
        yield server


# Streams, byte by byte


def streamed(server: Running, **change: Any) -> list[str]:
    """The blocks of a stream, which an empty line ends."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": CITED}], "stream": True}
    reply = server.process.send_json("/v1/chat/completions", {**body, **change}).reply()
    assert reply.status == 200
    assert reply.headers["content-type"].split(";")[0] == "text/event-stream"
    *blocks, end = reply.body.decode().split("\n\n")
    assert end == ""
    return blocks


def chunks(blocks: list[str]) -> list[dict[str, Any]]:
    *data, done = blocks
    assert done == "data: [DONE]"
    assert all(block.startswith("data: {") and "\n" not in block for block in data)
    return [json.loads(block.removeprefix("data: ")) for block in data]


def test_a_stream_is_data_lines_and_ends_by_done(server: Running) -> None:
    found = chunks(streamed(server))
    assert {chunk["object"] for chunk in found} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in found}) == 1
    (first,) = found[0]["choices"]
    assert first["delta"] == {"role": "assistant", "content": ""}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in found]
    assert reasons == [None] * (len(found) - 1) + ["stop"]
    assert found[-1]["choices"][0]["delta"] == {}


def test_a_stream_says_what_the_whole_answer_says(server: Running) -> None:
    found = chunks(streamed(server))
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in found)
    body = {"model": MODEL, "messages": [{"role": "user", "content": CITED}]}
    whole = server.process.send_json("/v1/chat/completions", body).reply().json()
    assert text == whole["choices"][0]["message"]["content"]
    assert found[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == len(found) - 2  # but the first and the last


def test_a_stream_may_be_cut(server: Running) -> None:
    found = chunks(streamed(server, max_tokens=3))
    assert len(found) == 3 + 2
    assert found[-1]["choices"][0]["finish_reason"] == "length"
    assert found[-1]["usage"]["completion_tokens"] == 3


def test_usage_comes_apart_where_that_is_asked_for(server: Running) -> None:
    *before, last = chunks(streamed(server, stream_options={"include_usage": True}))
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] > 0
    assert not any(chunk.get("usage") for chunk in before)
    assert before[-1]["choices"][0]["finish_reason"] == "stop"


def test_an_error_of_a_stream_is_a_status(server: Running) -> None:
    body = {"model": MODEL, "messages": [], "stream": True}
    reply = server.process.send_json("/v1/chat/completions", body).reply()
    assert reply.status == 400
    assert reply.json()["error"]["param"] == "messages"


def test_events_of_a_response_are_named_and_numbered(server: Running) -> None:
    body = {"model": MODEL, "input": CITED, "stream": True}
    reply = server.process.send_json("/v1/responses", body).reply()
    *blocks, end = reply.body.decode().split("\n\n")
    assert end == ""
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    text = "".join(event.get("delta", "") for event in events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text


# Requests as known clients send them


@pytest.mark.parametrize("shape", replay.shapes(), ids=str)
def test_a_known_client_can_read_the_reply(server: Running, shape: replay.Shape) -> None:
    replay.check(shape, server.url, KEY, MODEL)


# OpenAI's client


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_the_openai_client_asks(client: Any) -> None:
    found = client.chat.completions.create(model=MODEL, messages=ASKED)
    assert found.choices[0].message.content
    assert found.model_extra["skip"]["question"] == QUESTION
    with client.chat.completions.stream(model=MODEL, messages=ASKED) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in events
    assert final.choices[0].message.content == found.choices[0].message.content


def test_the_openai_client_gets_responses(client: Any) -> None:
    whole = client.responses.create(model=MODEL, input=CITED)
    assert whole.status == "completed"
    with client.responses.stream(model=MODEL, input=CITED) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == whole.output_text


def test_the_openai_client_lists_models(client: Any) -> None:
    models = list(client.models.list())
    assert models[0].id == MODEL
    assert client.models.retrieve(MODEL) == models[0]


def test_the_openai_client_knows_our_errors(client: Any) -> None:
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4o", messages=ASKED)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ASKED, n=2)
    assert caught.value.param == "n"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-another-key").models.list()


# Our own


def test_a_photo_under_another_name_is_not_left_out(server: Running) -> None:
    """The question would be answered without it, as if nothing were wrong."""
    reply = server.process.ask(QUESTION, image="the photo").reply()
    assert reply.status == 400
    error = reply.json()["error"]
    assert error["code"] == "unknown_field"
    assert error["message"].startswith("the form has no such field, but question, photo, ")


def test_our_client_asks_and_indexes(server: Running, tmp_path: Path) -> None:
    client = Client(server.url, KEY)
    answer = client.ask(photo(), QUESTION)
    assert str(answer)
    assert client.models()[0]["id"] == MODEL
    (tmp_path / "notes.md").write_text("# Zorblatt\n\nA zorblatt is a lamp that burns whale oil.\n")
    built = client.build_index("notes", [tmp_path])
    assert built["status"] == "ready"
    assert [index["name"] for index in client.indexes()] == ["default", "notes"]
    client.ask(None, "What does a zorblatt burn?", index="notes")
    client.delete_index("notes")
    assert [index["name"] for index in client.indexes()] == ["default"]


# Prompted mode. The small model follows no instructions, so this is what a reader of bad replies
# has to stand: real HTTP, a real key, and completions that were not written for it.

ARTICLES = {
    "Espresso": "Espresso is brewed by forcing hot water under pressure through ground coffee.",
    "Teapot": "A teapot is a vessel in which tea leaves steep in boiling water.",
    "Saucer": "A saucer is a small dish that is set under a cup.",
}
# The server takes questions of 200 words: few passages, and short ones.
CONFIG = PromptedConfig(medium=LevelBudget(2, 2), hard=LevelBudget(2, 2), excerpt_words=20)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("prompted")
    rows = [{"id": title, "title": title, "text": text} for title, text in ARTICLES.items()]
    (folder / "articles.jsonl").write_text("\n".join(map(json.dumps, rows)))
    build(folder / "articles", [JsonLines(folder / "articles.jsonl")], LexicalEncoder.default())
    return Library.open([folder / "articles"])


@pytest.fixture
def ball() -> Image.Image:
    return Image.open(BytesIO(photo()))


def test_every_step_of_prompted_mode_is_answered(
    server: Running, library: Library, ball: Image.Image
) -> None:
    endpoint = Endpoint(f"{server.url}/v1", KEY)
    config = replace(CONFIG, fast_path=False)
    answer = Prompted(endpoint, MODEL, library, config).answer(ball, "How is espresso brewed?")
    purposes = dict.fromkeys(call.purpose for call in answer.calls)
    assert list(purposes) == ["draft", "regions", "queries", "relevance", "answer"]
    assert answer.text
    assert answer.fallbacks
    assert "Espresso" in {passage.title for passage in answer.passages}
    assert not answer.usage.estimated, "the server counts its tokens"
    assert answer.usage.prompt_tokens > 0


def test_prompted_mode_with_a_wrong_key_is_refused(
    server: Running, library: Library, ball: Image.Image
) -> None:
    prompted = Prompted(Endpoint(f"{server.url}/v1", "sk-wrong"), MODEL, library, CONFIG)
    with pytest.raises(EndpointError) as refused:
        prompted.answer(ball, "What is this?")
    assert refused.value.status == 401
    assert "sk-wrong" not in str(refused.value)
