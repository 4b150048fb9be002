"""The guard around an app that answers everything: what reaches the app, and what comes back.

The guard is the real one, called as a server would call it, without a network. Whatever a client
writes into a path, a host or a header, without a key it gets to `/health` and nowhere else; bodies
are cut at the byte; and every refusal has the form of this API.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi")

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from skipqa.serve import guard as guard_module
from skipqa.serve.errors import ApiError
from skipqa.serve.guard import COOKIE, POLICY, PROTECTION, Guard
from skipqa.serve.metrics import Metrics
from skipqa.serve.settings import LOOPBACK, ServeSettings

KEY, OTHER_KEY = "a-key-of-the-tests", "another-key-of-theirs"
HOST = "127.0.0.1:8000"
BODY, UPLOAD, IN_FLIGHT = 1_000, 3_000, 1_500  # limits, in bytes
Handler = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass
class App:
    """Reads the body and answers 200; remembers what has reached it."""

    reached: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    handler: Handler | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.reached.append(scope["path"])
        if self.handler is not None:
            await self.handler(scope, receive, send)
            return
        self.bodies.append(await read_all(receive))
        await respond(send)


async def read_all(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def respond(send: Send, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b"reached"})


class NoResponse(Exception):
    """The client is gone: there is nobody to answer."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.body)["error"])


def guarded(**changes: Any) -> tuple[App, Guard]:
    limits = {"max_body": BODY, "max_upload": UPLOAD, "max_in_flight": IN_FLIGHT}
    usual = {"keys": (KEY, OTHER_KEY), "body_timeout_s": 5.0, **limits}
    settings = ServeSettings(**{**usual, **changes})
    app = App()
    return app, Guard(app, settings, Metrics())


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 15))

    return run


Headers = Sequence[tuple[str, str]]


async def call(
    guard: Guard,
    path: str = "/v1/ask",
    headers: Headers = (("Host", HOST),),
    *,
    method: str = "POST",
    query: str = "",
    blocks: Sequence[bytes | None] = (b"",),
    leaves: bool = False,
) -> Answer:
    """As a server calls an app. A block that is None never comes: the client is silent. One that
    leaves is gone before the end of the body."""
    pending = list(blocks)
    sent: list[Message] = []

    async def receive() -> Message:
        if not pending:
            return {"type": "http.disconnect"}
        if (block := pending.pop(0)) is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": block, "more_body": leaves or bool(pending)}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode("latin-1"),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
    }
    await guard(scope, receive, send)
    if not sent:
        raise NoResponse
    start, *rest = sent
    named = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], named, b"".join(one.get("body", b"") for one in rest))


def answer(guard: Guard, *arguments: Any, **options: Any) -> Answer:
    return asyncio.run(call(guard, *arguments, **options))


def check_form(found: Answer) -> None:
    """An error as this API has it, with the headers that protect a browser."""
    assert set(found.error) == {"message", "type", "param", "code"}
    assert found.error["message"]
    assert "\n" not in found.error["message"]
    assert found.headers["content-security-policy"] == POLICY
    for name, value in PROTECTION.items():
        assert found.headers[name.lower()] == value
    assert not any(name.startswith("access-control") for name in found.headers)


AUTHORIZED = (("Host", HOST), ("Authorization", f"Bearer {KEY}"))

# Keys

NEARLY = """/health /HEALTH //health /health/ /health;x /health/.. /health/../v1/models /v1/models
/%68ealth /health%00 /health?x health""".split()
PATHS = st.sampled_from([*NEARLY, "/health\0", ""]) | st.text(max_size=30)
# What a header can hold: a server refuses line breaks, and decodes the rest as Latin-1
VALUES = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=40)
NEAR_HOSTS = f"{HOST} localhost [::1] x/health? a@127.0.0.1 * 127.0.0.1/health".split()
HOSTS = st.sampled_from(NEAR_HOSTS) | VALUES
NAMES = st.sampled_from("Authorization Cookie Origin X-Original-URL Content-Length".split())
NO_KEYS = f"Basic {KEY}|{KEY}|Bearer {KEY}x|Bearer {KEY[:-1]}|x={KEY}|Bearer|Bearer |a b; ; =|"
NO_KEYS += f'{COOKIE}=|{COOKIE}={KEY}x|{COOKIE}="\\777"'
CREDENTIALS = st.sampled_from(NO_KEYS.split("|")) | VALUES


@given(
    PATHS,
    st.lists(HOSTS, max_size=2),
    st.lists(st.tuples(NAMES, CREDENTIALS), max_size=4),
    st.sampled_from(["GET", "POST", "DELETE", "OPTIONS", "HEAD", "BREW"]),
    VALUES,
)
def test_nothing_but_health_is_reached_without_a_key(
    path: str, hosts: list[str], headers: list[tuple[str, str]], method: str, query: str
) -> None:
    app, guard = guarded()
    given_headers = [*(("Host", host) for host in hosts), *headers]
    found = answer(guard, path, given_headers, method=method, query=query)
    assert set(app.reached) <= {"/health"}
    if not app.reached:
        assert found.status in (400, 401, 413)
        check_form(found)


@given(st.sampled_from(["*", *LOOPBACK]), st.lists(HOSTS, max_size=3))
def test_a_request_names_one_host_that_the_server_has(allowed: str, hosts: list[str]) -> None:
    app, guard = guarded(hosts=(allowed,))
    found = answer(guard, "/health", [("Host", host) for host in hosts], method="GET")
    if found.status == 200:
        (host,) = hosts
        assert allowed == "*" or host.lower() == allowed or host.lower().startswith(f"{allowed}:")
        assert not set(host) & set("/?#@\\ ,")
    else:
        assert (found.status, found.error["code"]) == (400, "invalid_host")
        assert not app.reached


@pytest.mark.parametrize("key", [KEY, OTHER_KEY])
@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "Bearer  {} "])
def test_every_key_opens(key: str, form: str) -> None:
    app, guard = guarded()
    for name, value in (("Authorization", form.format(key)), ("Cookie", f"a=b; {COOKIE}={key}")):
        assert answer(guard, headers=[("Host", HOST), (name, value)]).status == 200
    assert len(app.reached) == 2


def test_without_keys_everybody_is_let_in() -> None:
    app, guard = guarded(keys=())
    assert answer(guard).status == 200
    assert app.reached == ["/v1/ask"]


@given(VALUES)
def test_only_a_key_opens(value: str) -> None:
    app, guard = guarded()
    answer(guard, headers=[("Host", HOST), ("Authorization", f"Bearer {value}")])
    assert bool(app.reached) == (value.strip() in (KEY, OTHER_KEY))


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all keys, also after one that is the right one."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return hmac.compare_digest(left, right)

    class Watched:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(guard_module, "hmac", Watched)
    _, guard = guarded()
    answer(guard, headers=AUTHORIZED)
    keys = [KEY.encode(), OTHER_KEY.encode()]
    assert compared[:2] == [(KEY.encode(), key) for key in keys]
    assert {right for _, right in compared} == set(keys)


def test_a_key_in_the_address_becomes_a_cookie_once() -> None:
    app, guard = guarded()
    host = [("Host", HOST)]
    found = answer(guard, "/", host, method="GET", query=f"key={KEY}")
    assert (found.status, found.headers["location"]) == (303, "/")
    flags = found.headers["set-cookie"].lower()
    assert flags.startswith(f"{COOKIE}={KEY};")
    assert "httponly" in flags
    assert "samesite=strict" in flags
    for path, method in (("/", "POST"), ("/v1/models", "GET"), ("//", "GET")):
        refused = answer(guard, path, host, method=method, query=f"key={KEY}")
        assert refused.status == 401
        assert "set-cookie" not in refused.headers
    assert not app.reached


def test_a_browser_without_a_key_gets_a_page() -> None:
    app, guard = guarded()
    html = [("Host", HOST), ("Accept", "text/html,*/*")]
    found = answer(guard, "/", html, method="GET", query="key=wrong")
    assert found.status == 401
    assert found.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert b"wrong" not in found.body
    check_form(answer(guard, "/v1/models", html, method="GET"))
    assert not app.reached


# Other sites

NEAR_ORIGINS = (
    f"null http://[ http://{HOST} https://{HOST}.x http://{HOST}@x http://x/{HOST} x:// //"
)
ORIGINS = st.sampled_from(NEAR_ORIGINS.split(" ")) | VALUES


@given(ORIGINS, st.sampled_from(["POST", "DELETE", "PUT", "BREW"]), st.booleans())
def test_a_page_of_another_site_changes_nothing(origin: str, method: str, keys: bool) -> None:
    app, guard = guarded() if keys else guarded(keys=())
    found = answer(guard, headers=[*AUTHORIZED, ("Origin", origin)], method=method)
    if app.reached:
        assert origin.partition("://")[2] == HOST
    else:
        assert (found.status, found.error["code"]) == (403, "cross_origin")
        check_form(found)


@pytest.mark.parametrize("site", ["same-origin", "none", "cross-site", "same-site", "x", ""])
def test_a_browser_says_where_a_request_comes_from(site: str) -> None:
    app, guard = guarded(keys=())
    answer(guard, headers=[("Host", HOST), ("Sec-Fetch-Site", site)])
    assert bool(app.reached) == (site in ("same-origin", "none"))


# Bodies


@pytest.mark.parametrize(
    ("path", "limit"),
    [("/v1/ask", BODY), ("/v1/indexes", UPLOAD), ("/v1/indexes/", UPLOAD), ("/v1/indexes/x", BODY)],
)
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("pieces", [1, 7])
def test_a_body_is_limited_to_the_byte(path: str, limit: int, declared: bool, pieces: int) -> None:
    for size in (limit - 1, limit, limit + 1):
        app, guard = guarded()
        length = [("Content-Length", str(size))] if declared else []
        step = -(-size // pieces)
        blocks = [b"x" * min(step, size - start) for start in range(0, size, step)]
        found = answer(guard, path, [*AUTHORIZED, *length], blocks=blocks)
        assert found.status == (413 if size > limit else 200)
        assert app.bodies == ([] if size > limit else [b"x" * size])
        assert bool(app.reached) == (size <= limit or not declared)
        assert guard._in_flight == 0
        if size > limit:
            check_form(found)


@given(st.text("0123456789+-_ .ex²", max_size=30) | st.integers(4_000, 9_000).map("9".__mul__))
def test_a_length_is_a_number_or_refused(length: str) -> None:
    app, guard = guarded()
    found = answer(guard, headers=[*AUTHORIZED, ("Content-Length", length)])
    if app.reached:
        assert length.isdecimal()
        assert int(length) <= BODY
    else:
        assert found.status in (400, 413)
        check_form(found)


@given(st.lists(st.integers(0, 700), min_size=1, max_size=6), st.booleans())
def test_what_is_in_flight_is_given_back(sizes: list[int], leaves: bool) -> None:
    """Whatever happens to a request: answered, too large, or given up by its client."""
    app, guard = guarded()
    blocks = [b"x" * size for size in sizes]
    with suppress(NoResponse):
        answer(guard, headers=AUTHORIZED, blocks=blocks, leaves=leaves)
    assert guard._in_flight == 0
    assert app.reached == ["/v1/ask"]


@pytest.mark.parametrize(
    "error", [ValueError("at /srv/x"), ApiError(409, "x", "busy"), ClientDisconnect(), KeyError()]
)
def test_an_app_that_fails_gives_back_what_it_held(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    app, guard = guarded()

    async def fail(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        assert guard._in_flight == 3
        raise error

    app.handler = fail
    if isinstance(error, ClientDisconnect):
        with pytest.raises(NoResponse):
            answer(guard, headers=AUTHORIZED, blocks=[b"abc"])
    else:
        found = answer(guard, headers=AUTHORIZED, blocks=[b"abc"])
        assert found.status == (409 if isinstance(error, ApiError) else 500)
        check_form(found)
        assert b"/root" not in found.body
        assert bool(caplog.records) or isinstance(error, ApiError)
    assert guard._in_flight == 0


@in_loop
async def test_bodies_of_all_requests_together_are_limited() -> None:
    app, guard = guarded()
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def hold(_: Scope, receive: Receive, send: Send) -> None:
        await read_all(receive)
        reading.set()
        await go_on.wait()
        await respond(send)

    app.handler = hold
    first = asyncio.create_task(call(guard, headers=AUTHORIZED, blocks=[b"x" * 900]))
    await reading.wait()
    assert guard._in_flight == 900
    second = await call(guard, headers=AUTHORIZED, blocks=[b"x" * 700])
    assert (second.status, second.headers["retry-after"]) == (429, "1")
    check_form(second)
    upload = asyncio.create_task(call(guard, "/v1/indexes", AUTHORIZED, blocks=[b"x" * 2_900]))
    await asyncio.sleep(0)
    assert guard._in_flight == 900  # documents go to the disk
    third = asyncio.create_task(call(guard, headers=AUTHORIZED, blocks=[b"x" * 600]))
    await asyncio.sleep(0)
    go_on.set()
    assert [one.status for one in await asyncio.gather(first, upload, third)] == [200] * 3
    assert guard._in_flight == 0


@pytest.mark.parametrize("blocks", [[None], [b"x", None], [b"x"] * 5 + [None]])
@in_loop
async def test_a_body_that_does_not_come_is_not_waited_for(blocks: list[bytes | None]) -> None:
    _, guard = guarded(body_timeout_s=0.05)
    found = await asyncio.wait_for(call(guard, headers=AUTHORIZED, blocks=blocks), 5)
    assert (found.status, found.error["code"]) == (408, "request_timeout")
    check_form(found)
    assert guard._in_flight == 0


@in_loop
async def test_a_body_that_drips_has_a_deadline_as_a_whole() -> None:
    _, guard = guarded(body_timeout_s=0.2)
    num_drops = 0

    async def drip() -> AsyncIterator[bytes]:
        nonlocal num_drops
        while True:
            num_drops += 1
            yield b"x"
            await asyncio.sleep(0.02)

    transport = httpx.ASGITransport(app=guard)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
        sending = client.post("/v1/ask", content=drip(), headers=dict(AUTHORIZED[1:]))
        found = await asyncio.wait_for(sending, 5)
    assert found.status_code == 408
    assert 1 < num_drops < 50


@in_loop
async def test_the_deadline_is_for_the_body_and_not_for_the_answer() -> None:
    app, guard = guarded(body_timeout_s=0.05)

    async def slow(_: Scope, receive: Receive, send: Send) -> None:
        await read_all(receive)
        await asyncio.sleep(0.15)
        await respond(send)

    app.handler = slow
    assert (await call(guard, headers=AUTHORIZED)).status == 200


@in_loop
async def test_an_app_that_takes_a_refusal_for_its_own_error_is_not_heard() -> None:
    """Frameworks turn what goes wrong while a body is read into a status of theirs."""
    app, guard = guarded()

    async def careless(_: Scope, receive: Receive, send: Send) -> None:
        try:
            await read_all(receive)
        except ApiError:
            await respond(send, 400)

    app.handler = careless
    found = await call(guard, headers=AUTHORIZED, blocks=[b"x" * (BODY + 1)])
    assert found.status == 413
    check_form(found)


# What is said


def test_every_response_protects_browsers() -> None:
    _, guard = guarded()
    for path, method in (("/health", "GET"), ("/v1/ask", "POST")):
        found = answer(guard, path, AUTHORIZED, method=method)
        assert found.status == 200
        assert {name.lower() for name in PROTECTION} < set(found.headers)
        assert found.headers["content-security-policy"] == POLICY


def test_the_log_has_one_line_without_a_key(caplog: pytest.LogCaptureFixture) -> None:
    _, guard = guarded()
    path = "/\n2026-01-01 INFO forged\x1b[2J\u202e" + "x" * 1_000
    with caplog.at_level(logging.INFO, "skipqa.serve"):
        answer(guard, path, method="GET", query=f"key={KEY}")
        answer(guard, "/", method="GET", query=f"key={KEY}")
    assert len(caplog.messages) == 2
    for line in caplog.messages:
        assert line.isascii()
        assert line.isprintable()
        assert KEY not in line
        assert len(line) < 300


def test_there_are_no_websockets() -> None:
    app, guard = guarded(keys=())

    async def nothing(*_: Message) -> Any:
        raise AssertionError

    asyncio.run(guard({"type": "websocket", "path": "/health"}, nothing, nothing))
    assert not app.reached
