"""Chat completions of one OpenAI-compatible endpoint, with the standard library alone.

Enters: an address, a key, and requests of a text and at most one picture. Leaves: completions with
their tokens and seconds, or an `EndpointError` of one line. A busy or failing server is asked
again, after the pause that it names or a doubled one. The key goes to this address and nowhere
else: redirects are not followed, proxies of the environment are not used, and no message or `repr`
holds it. It does not know what is asked.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import re
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from skipqa.errors import UserError
from skipqa.prompted.answer import Usage
from skipqa.prompted.config import EndpointConfig

KEY_VARIABLE = "SKIPQA_ENDPOINT_KEY"
ROUTE = "/chat/completions"
PIECE = 1 << 16  # bytes read at a time
LARGEST_REPLY = 16 << 20  # bytes; a completion has some thousand
LONGEST_LINE = 300  # characters of what a server says
FOR_EVERYONE = (401, 402, 403, 404)  # the next question would be refused like this one
WILL_NOT_PASS = (501, 505)  # of the 5xx
# Where an endpoint does not count tokens: characters of English text per token, and pixels per
# token of vision encoders with patches of 28 x 28
CHARACTERS_PER_TOKEN, PIXELS_PER_TOKEN = 4, 784


class EndpointError(UserError):
    """The endpoint refused, failed or was out of reach. `status` is its own, if it gave one; with
    `for_everyone` another question would fare no better."""

    def __init__(
        self, message: str, status: int | None = None, *, for_everyone: bool = False
    ) -> None:
        super().__init__(message)
        self.status, self.for_everyone = status, for_everyone


@dataclass(frozen=True, slots=True)
class Picture:
    """As it is sent; the size is in pixels."""

    url: str
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class ChatRequest:
    model: str
    text: str
    picture: Picture | None
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    finish: str
    usage: Usage
    seconds: float
    attempts: int

    @property
    def cut_off(self) -> bool:
        return self.finish == "length"


class _Failed(Exception):
    """One attempt did; `passing`: another may not."""

    def __init__(
        self,
        message: str,
        status: int | None = None,
        *,
        passing: bool = False,
        retry_after: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.passing, self.retry_after = status, passing, retry_after


class Endpoint:
    """`url` is the base address, such as http://127.0.0.1:8000/v1. `key` goes along as a bearer
    token; None takes it from the environment variable `key_variable`, and without one nothing is
    sent. It may be used by several threads: at most `config.concurrency` calls are in flight."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        config: EndpointConfig | None = None,
        key_variable: str = KEY_VARIABLE,
    ) -> None:
        self.config = config or EndpointConfig()
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError:
            raise UserError("the address of the endpoint cannot be read") from None
        plain = parts.username is None and not parts.fragment and not parts.query
        if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
            raise UserError("the address of an endpoint looks like http://127.0.0.1:8000/v1")
        self._connection = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname, port
        path = parts.path.rstrip("/").removesuffix(ROUTE)
        if not re.fullmatch(r"[!-~]*", path):  # a request line takes no others
            raise UserError("the address of the endpoint has characters that no address has")
        self._path = path + ROUTE
        self.url = f"{parts.scheme}://{parts.netloc}{path}"
        self._key_variable = key_variable
        self._key = (os.environ.get(key_variable, "") if key is None else key).strip()
        if not re.fullmatch(r"[!-~]*", self._key):
            raise UserError("the key has characters that no key has: copy it again")
        self._slots = threading.BoundedSemaphore(self.config.concurrency)

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r}, {'with' if self._key else 'without'} a key)"

    def complete(self, request: ChatRequest) -> Completion:
        body = json.dumps(self._body(request)).encode()
        # A slot is held through pauses: a busy server gets fewer requests, not the next question's
        with self._slots:
            begin = time.monotonic()
            for attempt in itertools.count(1):
                try:
                    said = self._attempt(body)
                except _Failed as failed:
                    pause = self._pause(attempt, failed.retry_after)
                    if not self._again(failed, attempt, pause):
                        raise self._error(failed, attempt, pause) from None
                    time.sleep(pause)
                else:
                    seconds = time.monotonic() - begin
                    return _completion(said, request, seconds, attempt)
        raise AssertionError("attempts are counted without end")

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        content: str | list[dict[str, Any]] = request.text
        if request.picture is not None:
            picture = {"type": "image_url", "image_url": {"url": request.picture.url}}
            content = [picture, {"type": "text", "text": request.text}]
        body: dict[str, Any] = {
            "model": request.model,
            "messages": [{"role": "user", "content": content}],
            self.config.limit_field: request.max_tokens,
        }
        if self.config.send_temperature:
            body["temperature"] = self.config.temperature
        return body

    def _attempt(self, body: bytes) -> dict[str, Any]:
        """The JSON of a successful reply."""
        headers = {
            "Accept": "application/json",
            "Connection": "close",
            "Content-Type": "application/json",
        }
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        end = time.monotonic() + self.config.timeout
        connection = self._connection(self._host, self._port, timeout=self.config.timeout)
        try:
            connection.connect()
            # It may refuse before it has read everything, and say why.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request("POST", self._path, body, headers)
            status, retry_after, data = _read(connection, end)
        except TimeoutError:
            line = f"no answer from {self.url} within {self.config.timeout:g} s"
            raise _Failed(line, passing=True) from None
        except (OSError, HTTPException, UnicodeError) as error:
            # Nothing listens there, or the name or the certificate is wrong: that stays so.
            lasting = (ConnectionRefusedError, socket.gaierror, ssl.SSLError, UnicodeError)
            reason = _line(getattr(error, "strerror", None)) or type(error).__name__
            line = f"no answer from {self.url}: {reason}"
            raise _Failed(line, passing=not isinstance(error, lasting)) from None
        finally:
            connection.close()
        try:
            said = json.loads(data)
        except (ValueError, RecursionError):
            said = None
        if status == 200 and isinstance(said, dict) and isinstance(said.get("choices"), list):
            return said
        passing = status in (408, 429) or (status >= 500 and status not in WILL_NOT_PASS)
        raise _Failed(self._refusal(status, said), status, passing=passing, retry_after=retry_after)

    def _refusal(self, status: int, said: Any) -> str:
        if status // 100 == 3:
            return f"{self.url} leads to another address: give that one"
        message = _line(self._redacted(_said(said)))
        if not message:
            message = f"{self.url} does not answer like an OpenAI-compatible endpoint"
        line = f"{message} (status {status})"
        if status == 401 and not self._key:
            line += f"; give a key, or set {self._key_variable}"
        return line

    def _redacted(self, line: str) -> str:
        """Some servers repeat the key that they refuse."""
        return line.replace(self._key, "***") if self._key else line

    def _pause(self, attempt: int, retry_after: str | None) -> float:
        """As long as the server says, else doubled each time, at random up to a half less, so that
        calls that failed together do not come back together."""
        if (told := seconds_of(retry_after)) is not None:
            return told
        doubled = self.config.shortest_pause * 2.0 ** min(attempt - 1, 30)
        return min(self.config.longest_pause, doubled) * random.uniform(0.5, 1.0)

    def _again(self, failed: _Failed, attempt: int, pause: float) -> bool:
        left = attempt < self.config.attempts
        return failed.passing and left and pause <= self.config.longest_pause

    def _error(self, failed: _Failed, attempt: int, pause: float) -> EndpointError:
        line = str(failed)
        if failed.passing and pause > self.config.longest_pause:
            line += f"; it asks for a pause of {pause:,.0f} s"
        if attempt > 1:
            line += f" after {attempt} attempts"
        lasting = failed.status in FOR_EVERYONE or (failed.status is None and not failed.passing)
        return EndpointError(line, failed.status, for_everyone=lasting)


def _read(connection: HTTPConnection, end: float) -> tuple[int, str | None, bytes]:
    """Status, Retry-After and body, all before `end`: a server that sends a byte now and then does
    not hold the call for ever."""
    sock = connection.sock  # the connection lets go of it, the response does not
    sock.settimeout(_left(end))
    response = connection.getresponse()
    data = bytearray()
    with response:
        while piece := response.read1(PIECE):
            data += piece
            if len(data) > LARGEST_REPLY:
                raise HTTPException("a reply without end")
            sock.settimeout(_left(end))
    return response.status, response.headers.get("Retry-After"), bytes(data)


def _left(end: float) -> float:
    if (left := end - time.monotonic()) <= 0:
        raise TimeoutError
    return left


def seconds_of(retry_after: str | None) -> float | None:
    """Of a Retry-After header, which is a number of seconds or a date; None if it is neither."""
    said = (retry_after or "").strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", said):
        return float(said)
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _completion(
    said: dict[str, Any], request: ChatRequest, seconds: float, attempts: int
) -> Completion:
    """Whatever a model left out is empty: what follows has a fallback for that."""
    first = said["choices"][0] if said["choices"] else None
    choice = first if isinstance(first, dict) else {}
    message = choice.get("message")
    text = _content(message.get("content") if isinstance(message, dict) else None)
    return Completion(
        text, _line(choice.get("finish_reason")), _usage(said, request, text), seconds, attempts
    )


def _content(content: Any) -> str:
    if isinstance(content, list):  # parts, as in requests
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _usage(said: dict[str, Any], request: ChatRequest, text: str) -> Usage:
    stated = said.get("usage")
    if isinstance(stated, dict):
        read, written = stated.get("prompt_tokens"), stated.get("completion_tokens")
        if type(read) is int and type(written) is int and min(read, written) >= 0:
            return Usage(read, written)
    return Usage(estimate(request.text, request.picture), estimate(text), estimated=True)


def estimate(text: str, picture: Picture | None = None) -> int:
    pixels = 0 if picture is None else picture.width * picture.height
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN) + math.ceil(pixels / PIXELS_PER_TOKEN)


def _said(body: Any) -> str:
    """Of an error: OpenAI's form, and those of servers that nearly have it."""
    if not isinstance(body, dict):
        return ""
    error = body.get("error")
    nested = error.get("message") if isinstance(error, dict) else error
    texts = (nested, body.get("message"), body.get("detail"))
    return next((text for text in texts if isinstance(text, str) and text.strip()), "")


def _line(value: Any) -> str:
    """As one line of reasonable length; nothing if it is no text."""
    if not isinstance(value, str):
        return ""
    plain = re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", value.encode("utf-8", "replace").decode())
    return " ".join(plain.split())[:LONGEST_LINE]
