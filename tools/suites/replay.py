"""Requests as known clients send them, replayed, and what those clients read from the reply.

Enters: `shapes/*.json`, a server's address. Leaves: an outcome. A file says where its shapes were
read; `{model}`, `{png}`, `{jpeg}`, `{webp}`, `{png_called_jpeg}` and `{long}` are filled in here.
`reads` names places in the reply by keys and numbers joined by dots, `*` for all; `stream` says
that the reply is server-sent events; `skip` names fields of the pathway, without white space
around them.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools.suites.outcome import Case, Outcome, shortened
from tools.suites.photo import data_url
from tools.suites.server import KEY, MODEL, Running

SHAPES = Path(__file__).parent / "shapes"
TIMEOUT_S = 120


class Shape(NamedTuple):
    client: str
    request: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.client}: {self.request['name']}"


class Reply(NamedTuple):
    status: int
    kind: str
    text: str


def shapes() -> list[Shape]:
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(SHAPES.glob("*.json"))]
    return [Shape(file["client"], request) for file in files for request in file["requests"]]


def replay(_: Path, server: Running, __: Path) -> Outcome:
    passed, failed = 0, []
    for shape in shapes():
        try:
            check(shape, server.url, KEY, MODEL)
            passed += 1
        except AssertionError as error:
            failed.append(Case(str(shape), shortened(str(error))))
    clients = sorted({shape.client for shape in shapes()})
    return Outcome("request shapes", ", ".join(clients), passed, failed)


def check(shape: Shape, url: str, key: str, model: str) -> None:
    request = shape.request
    reply = _send(request, url, key, model)
    expected = request.get("status", 200)
    assert reply.status == expected, f"status {reply.status}, not {expected}: {reply.text[:300]}"
    if "stream" in request:
        body = _streamed(reply, usage=request["stream"]["usage"])
    else:
        assert reply.kind == "application/json", reply.kind
        body = json.loads(reply.text)
    for place, kind in request.get("reads", {}).items():
        found = list(_at(body, place.split(".")))
        assert found, f"nothing at {place}"
        assert all(_is(kind, value) for value in found), f"{place} is no {kind}: {found!r:.80}"
    for name, value in request.get("skip", {}).items():
        assert body["skip"][name].strip() == value, f"skip.{name} is {body['skip'][name]!r}"


def _send(request: dict[str, Any], url: str, key: str, model: str) -> Reply:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    headers |= request.get("headers", {})
    data = None
    if (body := request.get("body")) is not None:
        data = json.dumps(_filled(body, model)).encode()
    call = urllib.request.Request(
        url + request["path"], data=data, headers=headers, method=request["method"]
    )
    try:
        with urllib.request.urlopen(call, timeout=TIMEOUT_S) as reply:
            kind = reply.headers.get_content_type()
            return Reply(reply.status, kind, reply.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.headers.get_content_type(), error.read().decode())


def _filled(value: Any, model: str) -> Any:
    if isinstance(value, dict):
        return {name: _filled(one, model) for name, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, model) for one in value]
    fillings = {
        "{model}": lambda: model,
        "{png}": lambda: data_url("PNG"),
        "{jpeg}": lambda: data_url("JPEG"),
        "{webp}": lambda: data_url("WEBP"),
        "{png_called_jpeg}": lambda: data_url("PNG", "jpeg"),
        "{long}": lambda: "Suggest questions that this person may ask next. " * 100,
    }
    return fillings[value]() if isinstance(value, str) and value in fillings else value


def _streamed(reply: Reply, *, usage: bool) -> dict[str, Any]:
    """The chunks, put together as a client does that reads lines."""
    assert reply.kind == "text/event-stream", reply.kind
    lines = [line for line in reply.text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines), "a line that is no data"
    assert lines[-1] == "data: [DONE]", lines[-1]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices), "no content"
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] in ("stop", "length")
    counts = [chunk["usage"]["total_tokens"] for chunk in chunks if chunk.get("usage")]
    assert bool(counts) is usage, "usage is missing, or was not asked for"
    return {key: value for chunk in chunks for key, value in chunk.items()}


def _at(value: Any, place: list[str]) -> Iterator[Any]:
    if not place:
        yield value
        return
    first, *rest = place
    if first == "*":
        for one in value:
            yield from _at(one, rest)
    elif isinstance(value, list):
        yield from _at(value[int(first)], rest) if int(first) < len(value) else ()
    elif isinstance(value, dict) and first in value:
        yield from _at(value[first], rest)


def _is(kind: str, value: Any) -> bool:
    if kind == "text":
        return isinstance(value, str) and bool(value.strip())
    return isinstance(value, (int, float)) and not isinstance(value, bool)
