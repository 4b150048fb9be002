"""A vision-language model that says what a test tells it to, behind real HTTP.

Enters: what to say for each purpose, or whole replies one after another. Leaves: an address, what
was asked there, and how many calls were in flight at once.
"""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from PIL import Image

# What each prompt asks for, whatever its words are
PURPOSES = {
    "<assistant_2>": "review",
    '"depicted"': "depicted",
    '"grammatical"': "grammatical",
    "without both": "question",
    '"difficulty"': "draft",
    '"regions"': "regions",
    '"queries"': "queries",
    '"scores"': "relevance",
    "search box": "query",
    "<difficulty>": "answer",
    "<picture>": "captioned",
}


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float = field(default_factory=time.monotonic)

    @property
    def _parts(self) -> list[dict[str, Any]]:
        content = self.body["messages"][0]["content"]
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    @property
    def text(self) -> str:
        return "".join(part["text"] for part in self._parts if part["type"] == "text")

    @property
    def image(self) -> Image.Image | None:
        urls = [part["image_url"]["url"] for part in self._parts if part["type"] == "image_url"]
        assert len(urls) <= 1
        if not urls:
            return None
        head, _, coded = urls[0].partition(",")
        assert head == "data:image/jpeg;base64"
        return Image.open(io.BytesIO(base64.b64decode(coded)))

    @property
    def purpose(self) -> str:
        return next((name for mark, name in PURPOSES.items() if mark in self.text), "caption")


@dataclass
class Reply:
    status: int = 200
    body: Any = None  # bytes, or what becomes JSON
    headers: Mapping[str, str] = field(default_factory=dict)


def said(text: Any, **change: Any) -> Reply:
    body = {
        "id": "1",
        "object": "chat.completion",
        "model": "scripted",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
    return Reply(200, {**body, **change})


def refused(status: int, message: str = "one clear line", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"error": {"message": message, "type": "x", "code": None}}, named)


class ScriptedVLM(ThreadingHTTPServer):
    """Gives `replies` one after another while there are some, then what `script` says for the
    purpose of a prompt: a text, a `Reply`, or a function of what was asked."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[Asked] = []
        self.replies: list[Reply] = []
        self.script: dict[str, str | Reply | Callable[[Asked], str | Reply]] = {}
        self.most_at_once = 0
        self.allowed, self.too_many = 1_000, threading.Event()  # set by more calls than `allowed`
        self._at_once, self._lock = 0, threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def purposes(self) -> list[str]:
        return [one.purpose for one in self.asked]

    def of(self, purpose: str) -> list[Asked]:
        return [one for one in self.asked if one.purpose == purpose]

    @contextmanager
    def in_flight(self, asked: Asked) -> Iterator[Reply | None]:
        with self._lock:
            self.asked.append(asked)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            if self._at_once > self.allowed:
                self.too_many.set()
            reply = self.replies.pop(0) if self.replies else None
        try:
            yield reply
        finally:
            with self._lock:
                self._at_once -= 1


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedVLM

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.path, headers, body)
        with self.server.in_flight(asked) as reply:
            if reply is None:
                scripted = self.server.script.get(asked.purpose, "")
                scripted = scripted(asked) if callable(scripted) else scripted
                reply = said(scripted) if isinstance(scripted, str) else scripted
        data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        try:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # the client has left

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[ScriptedVLM]:
    server = ScriptedVLM()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
