"""What every request passes first: its host, its key, its size. An ASGI wrapper around the app.

Enters: a request. Leaves: the request with a bounded body, or a refusal. Decisions rest on the
path as it arrived (`scope["path"]`), never on a URL put together from headers, which a client
writes. Responses get the headers that keep a browser from being used against its owner.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Sequence
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skipqa.serve.errors import ApiError, bad_request, busy, internal, too_large, unauthorized
from skipqa.serve.metrics import Metrics
from skipqa.serve.settings import ServeSettings

log = logging.getLogger("skipqa.serve")
OPEN = ("/health",)  # without a key
UPLOADS = "/v1/indexes"
COOKIE = "skipqa_key"
HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")
MAX_VALUES = 500_000  # of JSON: each takes a hundred times the bytes it is written in
LENGTH = re.compile(r"[0-9]{1,15}")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
LOGIN_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
PROTECTION = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    def __init__(self, app: ASGIApp, settings: ServeSettings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self._in_flight = 0  # bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no websockets
        started, status = time.perf_counter(), 500

        async def protected(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in PROTECTION.items():
                    headers.setdefault(name, value)
                headers.setdefault("Content-Security-Policy", POLICY)
            await send(message)

        try:
            if (refusal := self._refusal(scope)) is not None:
                await refusal(scope, receive, protected)
            else:
                await self._bounded(scope, receive, protected)
        except ClientDisconnect:
            status = 499
        finally:
            taken = time.perf_counter() - started
            self.metrics.responded(scope["method"], status)
            log.info("%s %s %d %.0f ms", scope["method"], _printable(scope), status, 1e3 * taken)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if not self._knows_host(headers.getlist("host")):
            return bad_request("invalid_host", "the server does not go by this name").response()
        if path in OPEN:
            return None
        if not self._may(headers):
            return self._login(scope, headers)
        if scope["method"] not in SAFE_METHODS and not _same_origin(headers):
            message = "requests from pages of other sites are refused"
            return ApiError(403, "cross_origin", message).response()
        return None

    def _knows_host(self, given: Sequence[str]) -> bool:
        """One well-formed Host that the server is known by: a page that made its own name point
        here (DNS rebinding) is not."""
        if len(given) != 1 or (found := HOST.fullmatch(given[0])) is None:
            return False
        return "*" in self.settings.hosts or found[1].lower() in self.settings.hosts

    def _may(self, headers: Headers) -> bool:
        if not self.settings.keys:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = [key.strip()] if scheme.lower() == "bearer" else []
        given += [_cookie(headers)]
        return any(self._is_key(one) for one in given)

    def _is_key(self, given: str) -> bool:
        """Compared with every key, each in constant time."""
        found = [hmac.compare_digest(given.encode(), key.encode()) for key in self.settings.keys]
        return any(found)

    def _login(self, scope: Scope, headers: Headers) -> Response:
        """A browser may bring the key in the address of the page, once; it then has a cookie."""
        page = scope["path"] == "/" and scope["method"] == "GET"
        (key,) = parse_qs(scope["query_string"].decode("latin-1")).get("key", [""])[:1]
        if page and self._is_key(key):
            entered = RedirectResponse("/", 303)
            entered.set_cookie(COOKIE, key, httponly=True, samesite="strict")
            return entered
        if page and "text/html" in headers.get("accept", ""):
            text = files("skipqa.serve").joinpath("static/login.html").read_text(encoding="utf-8")
            policy = {"Content-Security-Policy": LOGIN_POLICY}
            return HTMLResponse(text, 401, headers=policy)
        return unauthorized().response()

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The app with a body of limited size that has to come in limited time."""
        settings, responded = self.settings, False
        upload = scope["path"].rstrip("/") == UPLOADS
        limit = settings.max_upload if upload else settings.max_body
        held, got, values = 0, 0, 0
        form = Headers(scope=scope).get("content-type", "").startswith("multipart/form-data")
        refused: ApiError | None = None  # kept: the app may take it for a body it cannot read
        deadline = time.monotonic() + settings.body_timeout_s * (limit / settings.max_body)
        complete = False

        async def counted() -> Message:
            nonlocal refused
            try:
                return await read()
            except ApiError as error:
                refused = error
                raise

        async def read() -> Message:
            nonlocal held, got, values, complete
            if complete:
                return await receive()  # waits for the client to leave
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                slow = "the body of the request did not come in time"
                raise ApiError(408, "request_timeout", slow) from None
            if message["type"] != "http.request":
                complete = True
                return message
            body = message.get("body", b"")
            size = len(body)
            got += size
            if got > limit:
                raise too_large(limit)
            if not form:
                values += sum(map(body.count, (b"[", b"{", b",")))
                if values > MAX_VALUES:
                    raise bad_request("too_many_values", "the body has too many values")
            if not upload:  # documents go to the disk as they come
                if self._in_flight + size > settings.max_in_flight:
                    raise busy(1)
                held += size
                self._in_flight += size
            complete = not message.get("more_body", False)
            return message

        async def noted(message: Message) -> None:
            nonlocal responded
            if refused is None or responded:
                responded = True
                await send(message)

        try:
            declared = Headers(scope=scope).get("content-length", "0")
            if not LENGTH.fullmatch(declared) or int(declared) > limit:
                raise too_large(limit)
            await self.app(scope, counted, noted)
        except ApiError as error:
            refused = error
        except ClientDisconnect:
            raise
        except Exception:
            if refused is None:
                log.exception("a request failed")
                refused = internal()
        finally:
            self._in_flight -= held
        if refused is not None and not responded:
            await refused.response()(scope, receive, send)


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _same_origin(headers: Headers) -> bool:
    """A page of another site may send requests through a browser, but cannot hide its origin."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")


def _printable(scope: Scope) -> str:
    """The path without its query, which may hold a key; control characters cannot start a line."""
    return ascii(scope["path"])[1:-1][:200]
