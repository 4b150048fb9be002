"""The endpoint over real HTTP: what is sent, what is tried again, what is counted, what is said."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from typing import Any

import pytest
from PIL import Image
from scripted_vlm import Asked, Reply, ScriptedVLM, refused, said

from skipqa.errors import UserError
from skipqa.prompted.answer import Usage
from skipqa.prompted.config import EndpointConfig
from skipqa.prompted.endpoint import (
    ChatRequest,
    Endpoint,
    EndpointError,
    Picture,
    estimate,
    seconds_of,
)
from skipqa.prompted.images import as_picture, crop

KEY = "sk-a-secret-that-nobody-may-see"
QUICK = EndpointConfig(timeout=5.0, attempts=3, shortest_pause=0.01, longest_pause=2.0)
TEXT = ChatRequest("some-vlm", "What is this?", None, 99)


def test_what_is_sent(vlm: ScriptedVLM, cup: Image.Image) -> None:
    vlm.replies = [said("a cup"), said("a cup"), said("a cup")]
    picture = as_picture(cup, 100)
    endpoint = Endpoint(vlm.url + "/", KEY)
    done = endpoint.complete(ChatRequest("some-vlm", "What is this?", picture, 99))
    assert (done.text, done.finish, done.attempts) == ("a cup", "stop", 1)
    assert done.usage == Usage(100, 10)
    assert done.seconds > 0
    (asked,) = vlm.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in json.dumps(asked.body)
    assert asked.text == "What is this?"
    assert asked.image is not None
    assert asked.image.size == (picture.width, picture.height) == (100, 50)
    rest = {name: value for name, value in asked.body.items() if name != "messages"}
    assert rest == {"model": "some-vlm", "max_tokens": 99, "temperature": 0.0}

    newer = EndpointConfig(send_temperature=False, limit_field="max_completion_tokens")
    Endpoint(vlm.url + "/chat/completions", config=newer).complete(TEXT)
    body = vlm.asked[-1].body
    assert body["messages"] == [{"role": "user", "content": "What is this?"}]
    assert (set(body), body["max_completion_tokens"]) == (
        {"model", "messages", "max_completion_tokens"},
        99,
    )
    assert "authorization" not in vlm.asked[-1].headers
    assert vlm.asked[-1].path == "/v1/chat/completions"


def test_where_the_key_comes_from(vlm: ScriptedVLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(*args: Any, **more: Any) -> str | None:
        Endpoint(vlm.url, *args, **more).complete(TEXT)
        return vlm.asked[-1].headers.get("authorization")

    assert sent() is None
    monkeypatch.setenv("SKIPQA_ENDPOINT_KEY", "from-outside\n")
    monkeypatch.setenv("ANOTHER_KEY", "another")
    assert sent() == "Bearer from-outside"
    assert sent(key_variable="ANOTHER_KEY") == "Bearer another"
    assert sent("given") == "Bearer given"
    assert sent("") is None


def test_the_key_is_shown_nowhere(vlm: ScriptedVLM) -> None:
    endpoint = Endpoint(vlm.url, KEY, QUICK)
    assert KEY not in repr(endpoint) + str(vars(endpoint).get("url"))
    vlm.replies = [refused(401, f"wrong key {KEY}: see the manual"), refused(400, "x" * 290 + KEY)]
    with pytest.raises(EndpointError) as failed:
        endpoint.complete(TEXT)
    assert str(failed.value) == "wrong key ***: see the manual (status 401)"
    with pytest.raises(EndpointError) as failed:
        endpoint.complete(TEXT)
    assert KEY[:6] not in str(failed.value), "not cut off in the middle of it either"
    with pytest.raises(UserError, match="copy it again") as bad:
        Endpoint(vlm.url, "zwei Wörter")
    assert "Wörter" not in str(bad.value)


def test_without_a_key_the_way_to_one_is_named(vlm: ScriptedVLM) -> None:
    vlm.replies = [refused(401, "a key is needed")]
    with pytest.raises(EndpointError, match=r"a key is needed .*set SKIPQA_ENDPOINT_KEY") as failed:
        Endpoint(vlm.url).complete(TEXT)
    assert failed.value.for_everyone


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "ftp://a/v1",
        "http://",
        "http://u:p@a/v1",
        "http://a/v1?key=x",
        "http://a:99999999/v1",
        "http://a/v 1",
        "http://[::1/v1",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UserError, match="address"):
        Endpoint(url)


# Trying again


def test_busy_then_free_after_the_pause_that_it_names(vlm: ScriptedVLM) -> None:
    vlm.replies = [refused(429, Retry_After="1"), refused(429, Retry_After="0.2"), said("a cup")]
    done = Endpoint(vlm.url, config=QUICK).complete(TEXT)
    assert (done.text, done.attempts) == ("a cup", 3)
    first, second, third = (asked.at for asked in vlm.asked)
    assert second - first >= 1
    assert third - second >= 0.2
    assert done.seconds >= 1.2


def test_pauses_double_up_to_the_longest() -> None:
    config = EndpointConfig(shortest_pause=1.0, longest_pause=6.0)
    endpoint = Endpoint("http://127.0.0.1:1/v1", config=config)
    for attempt, most in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 6.0), (40, 6.0), (4_000, 6.0)):
        pauses = [endpoint._pause(attempt, None) for _ in range(200)]
        assert most / 2 <= min(pauses)
        assert max(pauses) <= most
        assert len(set(pauses)) > 1, "calls that failed together do not come back together"


def test_a_date_to_come_back_at() -> None:
    assert seconds_of("7") == 7.0
    assert seconds_of(formatdate(time.time() - 100, usegmt=True)) == 0.0
    later = seconds_of(formatdate(time.time() + 100, usegmt=True))
    assert later is not None
    assert 97 < later <= 100
    for bad in (None, "", "soon", "-1", "1e9", "inf", "Wed, 99 Foo 2026 99:99:99 GMT"):
        assert seconds_of(bad) is None


def test_too_long_a_pause_is_not_waited_for(vlm: ScriptedVLM) -> None:
    vlm.replies = [refused(429, "quota", Retry_After="3600")]
    with pytest.raises(
        EndpointError, match=r"quota \(status 429\); it asks for a pause of 3,600 s"
    ):
        Endpoint(vlm.url, config=QUICK).complete(TEXT)
    assert len(vlm.asked) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529, 408])
def test_failures_until_giving_up(vlm: ScriptedVLM, status: int) -> None:
    vlm.replies = [refused(status, "overloaded\nsorry")] * 9
    with pytest.raises(EndpointError) as failed:
        Endpoint(vlm.url, config=QUICK).complete(TEXT)
    assert str(failed.value) == f"overloaded sorry (status {status}) after 3 attempts"
    assert (failed.value.status, failed.value.for_everyone) == (status, False)
    assert len(vlm.asked) == 3


@pytest.mark.parametrize("status", [400, 403, 404, 413, 422, 501])
def test_refusals_are_not_tried_again(vlm: ScriptedVLM, status: int) -> None:
    vlm.replies = [refused(status)] * 9
    with pytest.raises(EndpointError, match=rf"^one clear line \(status {status}\)$") as failed:
        Endpoint(vlm.url, config=QUICK).complete(TEXT)
    assert failed.value.for_everyone is (status in (403, 404))
    assert len(vlm.asked) == 1


def test_time_out_and_another_attempt(vlm: ScriptedVLM) -> None:
    """A server that stays silent, then one that answers."""
    answered = threading.Event()

    def first_silent(asked: Asked) -> str:
        if len(vlm.asked) == 1:
            answered.wait(10)
        return "a cup"

    vlm.script["caption"] = first_silent
    config = EndpointConfig(timeout=0.3, attempts=2, shortest_pause=0.01)
    try:
        done = Endpoint(vlm.url, config=config).complete(TEXT)
    finally:
        answered.set()
    assert (done.text, done.attempts) == ("a cup", 2)


def test_a_trickle_of_bytes_is_no_answer() -> None:
    """Each byte comes in time, all of them do not."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = threading.Event()

        def trickle() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                while not ended.wait(0.05):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        config = EndpointConfig(timeout=0.4, attempts=1)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        begin = time.monotonic()
        try:
            with pytest.raises(EndpointError, match=r"within 0\.4 s$"):
                Endpoint(url, config=config).complete(TEXT)
            assert time.monotonic() - begin < 5
        finally:
            ended.set()
            thread.join()


def test_nobody_there_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(EndpointError, match=r"refused$") as failed:
        Endpoint(f"http://127.0.0.1:{port}/v1", config=QUICK).complete(TEXT)
    assert failed.value.for_everyone


def test_redirects_are_not_followed(vlm: ScriptedVLM) -> None:
    vlm.replies = [Reply(307, {}, {"Location": "http://127.0.0.1:1/v1"})]
    with pytest.raises(EndpointError, match="leads to another address"):
        Endpoint(vlm.url, KEY).complete(TEXT)


@pytest.mark.parametrize(
    "body", [b"<html>hello</html>", b"", b"[" * 100_000, {"choices": None}, [1], {"object": "list"}]
)
def test_what_is_no_endpoint(vlm: ScriptedVLM, body: Any) -> None:
    vlm.replies = [Reply(200, body)]
    with pytest.raises(EndpointError, match="does not answer like an OpenAI-compatible endpoint"):
        Endpoint(vlm.url).complete(TEXT)


@pytest.mark.parametrize(
    "choices",
    [
        [],
        [None],
        [{}],
        [{"message": None}],
        [{"message": {"content": None}}],
        ["text"],
        [{"message": {"content": 7}, "finish_reason": 7}],
    ],
)
def test_an_empty_completion_is_empty(vlm: ScriptedVLM, choices: Any) -> None:
    vlm.replies = [said("", choices=choices)]
    assert Endpoint(vlm.url).complete(TEXT).text == ""


def test_a_completion_in_parts(vlm: ScriptedVLM) -> None:
    vlm.replies = [said([{"type": "text", "text": "a "}, {"type": "x"}, {"text": "cup"}, 7])]
    assert Endpoint(vlm.url).complete(TEXT).text == "a cup"


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        7,
        {"prompt_tokens": 3},
        {"prompt_tokens": "3", "completion_tokens": 1},
        {"prompt_tokens": -1, "completion_tokens": 1},
    ],
)
def test_tokens_are_estimated_where_they_are_not_counted(vlm: ScriptedVLM, usage: Any) -> None:
    vlm.replies = [said("a cup of coffee", usage=usage)]
    request = ChatRequest("some-vlm", "x" * 41, Picture("data:,", 280, 280), 99)
    assert Endpoint(vlm.url).complete(request).usage == Usage(111, 4, estimated=True)
    assert estimate("") == 0


def test_no_more_calls_in_flight_than_allowed(vlm: ScriptedVLM) -> None:
    """Calls come in pairs, and no pair sees a third call while it waits for one."""
    pair = threading.Barrier(2)
    vlm.allowed = 2

    def slow(asked: Asked) -> str:
        pair.wait(10)  # would break if calls came one by one
        vlm.too_many.wait(0.1)
        return "a cup"

    vlm.script["caption"] = slow
    endpoint = Endpoint(vlm.url, config=EndpointConfig(concurrency=2))
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: endpoint.complete(TEXT), range(8)))
    assert [one.text for one in done] == ["a cup"] * 8
    assert vlm.most_at_once == 2
    assert not vlm.too_many.is_set()


# Pictures


def test_images_are_reduced_and_never_enlarged(cup: Image.Image) -> None:
    assert (as_picture(cup, 100).width, as_picture(cup, 100).height) == (100, 50)
    assert (as_picture(cup, 1_000).width, as_picture(cup, 1_000).height) == (400, 200)


@pytest.mark.parametrize(
    ("box", "size"),
    [
        ((0.0, 0.0, 1.0, 1.0), (400, 200)),
        ((0.5, 0.5, 0.75, 0.75), (120, 60)),
        ((0.99, 0.99, 1.0, 1.0), (60, 30)),
        ((0.0, 0.0, 0.01, 1.0), (60, 200)),
    ],
)
def test_crops_have_a_margin_and_a_size(
    cup: Image.Image, box: tuple[float, float, float, float], size: tuple[int, int]
) -> None:
    assert crop(cup, box, 1.2, 0.15).size == size


def test_a_crop_of_a_single_pixel() -> None:
    assert crop(Image.new("RGB", (1, 1)), (0.4, 0.4, 0.5, 0.5), 1.0, 0.0).size == (1, 1)
