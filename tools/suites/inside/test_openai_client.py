"""The OpenAI client as people use it: answers, streams, helpers, async, raw responses, errors.

Run in the suites' environment. The client validates strictly: a reply that is not of its types
fails. Its own tests, which `openai_own.py` runs, cover routes and types; these cover use.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

URL, KEY, MODEL = (os.environ[f"SUITES_{name}"] for name in ("URL", "KEY", "MODEL"))
PHOTO = Path(os.environ["SUITES_PHOTO"]).read_bytes()
PHOTO_URL = f"data:image/png;base64,{base64.b64encode(PHOTO).decode()}"
QUESTION = "What colour is the ball?"
ASKED: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": QUESTION},
            {"type": "image_url", "image_url": {"url": PHOTO_URL, "detail": "low"}},
        ],
    }
]
INPUT: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": QUESTION},
            {"type": "input_image", "image_url": PHOTO_URL, "detail": "auto"},
        ],
    }
]
MANY = 40  # more questions at once than the server takes on
TOO_LARGE = 40 << 20


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{URL}/v1", api_key=KEY, _strict_response_validation=True
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def impatient(client: openai.OpenAI) -> openai.OpenAI:
    """An error is seen at once, not after attempts."""
    return client.with_options(max_retries=0)


# Chat completions


def test_an_answer(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(model=MODEL, messages=ASKED)
    (choice,) = found.choices
    assert found.object == "chat.completion"
    assert found.model == MODEL
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "stop"
    assert found.usage is not None
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert found.model_extra is not None
    assert found.model_extra["skip"]["question"] == QUESTION


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ASKED)
    chunks = list(client.chat.completions.create(model=MODEL, messages=ASKED, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_usage_of_a_stream_comes_in_a_chunk_of_its_own(client: openai.OpenAI) -> None:
    *_, last = client.chat.completions.create(
        model=MODEL, messages=ASKED, stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 0


def test_the_helper_of_streams(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=ASKED) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    kinds = [event.type for event in events]
    assert "content.delta" in kinds
    assert kinds.count("content.done") == 1
    assert final.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


def test_max_tokens_and_stop(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is a beagle?"}]  # has citations
    whole = client.chat.completions.create(model=MODEL, messages=messages)
    text = whole.choices[0].message.content or ""
    cut = client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=2)
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage is not None
    assert cut.usage.completion_tokens == 2
    assert text.startswith(cut.choices[0].message.content or "?")
    stopped = client.chat.completions.create(model=MODEL, messages=messages, stop=["\n", "no"])
    assert stopped.choices[0].message.content == text.partition("\n")[0]
    assert stopped.choices[0].finish_reason == "stop"


def test_a_question_about_an_image_of_before(client: openai.OpenAI) -> None:
    history: list[Any] = [
        {"role": "system", "content": "Answer in one word."},
        *ASKED,
        {"role": "assistant", "content": "orange"},
        {"role": "user", "content": "And what is below it?"},
    ]
    found = client.chat.completions.create(model=MODEL, messages=history)
    assert found.model_extra is not None
    assert found.model_extra["skip"]["question"] == "And what is below it?"
    assert found.model_extra["skip"]["image"] is not None


def test_options_of_our_own(client: openai.OpenAI) -> None:
    body = {"skip": {"fast_path": False, "tokens": 16, "citations": False}, "index": "default"}
    found = client.chat.completions.create(model=MODEL, messages=ASKED, extra_body=body)
    assert found.model_extra is not None
    skip = found.model_extra["skip"]
    assert skip["route"] == "full"
    assert skip["budget"]["tokens"] == 16
    assert found.choices[0].message.content == skip["answer"]


# Async, raw


async def _all_ways() -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{URL}/v1", api_key=KEY, _strict_response_validation=True
    ) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=ASKED, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        asked = (client.chat.completions.create(model=MODEL, messages=ASKED) for _ in range(3))
        for found in await asyncio.gather(*asked):
            assert found.choices[0].message.content == text
        async with client.chat.completions.stream(model=MODEL, messages=ASKED) as helper:
            async for _ in helper:
                pass
            assert (await helper.get_final_completion()).choices[0].message.content == text
        assert (await client.models.list()).data[0].id == MODEL
        response = await client.responses.create(model=MODEL, input=INPUT)
        assert response.output_text == text


def test_the_async_client() -> None:
    asyncio.run(_all_ways())


def test_raw_and_streamed_responses(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=ASKED)
    assert raw.http_response.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].message.content
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=ASKED, stream=True
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


# Models


def test_models(client: openai.OpenAI) -> None:
    models = list(client.models.list())
    assert models[0].id == MODEL
    for model in models:
        assert client.models.retrieve(model.id) == model


def test_the_default_index_can_be_named_as_part_of_the_model(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(model=f"{MODEL}:default", messages=ASKED)
    assert found.model == f"{MODEL}:default"
    assert found.choices[0].message.content


# Responses


def test_a_response(client: openai.OpenAI) -> None:
    found = client.responses.create(model=MODEL, input=INPUT, instructions="Be brief.")
    assert found.status == "completed"
    assert found.output_text
    assert found.usage is not None
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens
    text = client.responses.create(model=MODEL, input="What is a beagle?")
    assert text.output_text


def test_an_incomplete_response(client: openai.OpenAI) -> None:
    found = client.responses.create(model=MODEL, input="What is a beagle?", max_output_tokens=1)
    assert found.status == "incomplete"
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"


def test_events_of_a_response(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model=MODEL, input=INPUT, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == said


def test_the_helper_of_responses(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=INPUT) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.output_text.delta" in kinds
    assert final.output_text


# Errors


class Colour(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 2}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
    ids=str,
)
def test_a_bad_request(impatient: openai.OpenAI, change: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        impatient.chat.completions.create(**{"model": MODEL, "messages": ASKED, **change})
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.code


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,bm90IGFuIGltYWdl",
        "data:image/png;base64,%%%",
        "data:text/plain;base64,aGVsbG8=",
        "https://example.com/photo.png",
        "file:///etc/hostname",
        "",
    ],
)
def test_an_image_that_is_none(impatient: openai.OpenAI, url: str) -> None:
    parts = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": url}}]
    messages: list[Any] = [{"role": "user", "content": parts}]
    with pytest.raises(openai.BadRequestError) as caught:
        impatient.chat.completions.create(model=MODEL, messages=messages)
    assert "/" not in caught.value.message.replace("data:image/…", "")  # no path, no address


def test_structured_output_is_refused(impatient: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        impatient.chat.completions.parse(model=MODEL, messages=ASKED, response_format=Colour)
    with pytest.raises(openai.BadRequestError):
        impatient.responses.parse(model=MODEL, input=INPUT, text_format=Colour)


def test_a_stored_response_is_refused(impatient: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        impatient.responses.create(model=MODEL, input=INPUT, previous_response_id="resp-1")


def test_a_wrong_key(impatient: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        impatient.with_options(api_key="sk-another-key").models.list()
    assert caught.value.code == "invalid_api_key"


def test_what_does_not_exist(impatient: openai.OpenAI) -> None:
    for model in ("gpt-4o", f"{MODEL}:absent"):
        with pytest.raises(openai.NotFoundError):
            impatient.chat.completions.create(model=model, messages=ASKED)
    with pytest.raises(openai.NotFoundError):
        impatient.models.retrieve("gpt-4o")
    with pytest.raises(openai.NotFoundError):
        impatient.embeddings.create(model=MODEL, input="text")


def test_a_page_of_another_site(impatient: openai.OpenAI) -> None:
    with pytest.raises(openai.PermissionDeniedError):
        impatient.chat.completions.create(
            model=MODEL, messages=ASKED, extra_headers={"Origin": "https://example.com"}
        )


def test_a_request_that_is_too_large(impatient: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "a" * TOO_LARGE}]
    with pytest.raises(openai.APIStatusError) as caught:
        impatient.chat.completions.create(model=MODEL, messages=messages)
    assert caught.value.status_code == 413
    assert caught.value.code == "request_too_large"


def test_a_question_without_time(impatient: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        impatient.chat.completions.create(
            model=MODEL, messages=ASKED, extra_body={"skip": {"timeout": 0.001}}
        )
    assert caught.value.status_code == 504
    assert caught.value.code == "timeout"


def test_a_busy_server_says_when_to_try_again(impatient: openai.OpenAI) -> None:
    def ask(_: int) -> openai.RateLimitError | None:
        try:
            impatient.chat.completions.create(model=MODEL, messages=ASKED)
        except openai.RateLimitError as error:
            return error
        return None

    with ThreadPoolExecutor(MANY) as threads:
        found = list(threads.map(ask, range(MANY)))
    refused = [error for error in found if error is not None]
    assert 0 < len(refused) < MANY
    for error in refused:
        assert error.code == "server_busy"
        assert int(error.response.headers["retry-after"]) >= 1


def test_the_client_waits_for_a_busy_server(client: openai.OpenAI) -> None:
    patient = client.with_options(max_retries=20)

    def ask(_: int) -> str | None:
        found = patient.chat.completions.create(model=MODEL, messages=ASKED)
        return found.choices[0].message.content

    with ThreadPoolExecutor(MANY // 2) as threads:
        (answer,) = set(threads.map(ask, range(MANY // 2)))
    assert answer
