"""The client against a real HTTP server on this machine that speaks as `skipqa serve` does."""

from __future__ import annotations

import email.parser
import email.policy
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from skipqa import client as module
from skipqa.client import Client, ClientError, Form, ServedPassage
from skipqa.errors import UserError

KEY = "sk-a-secret-that-nobody-may-see"
OUTLINE: dict[str, Any] = {
    "question": "How is this drink brewed?",
    "answer": "under pressure",
    "route": "full",
    "system": "skip",
    "confidence": 0.42,
    "grounded": True,
    "certainty": "42% sure; a passage says so",
    "image": {"width": 40, "height": 30},
    "tokens": {"grid": 2, "total": 4, "kept": [1], "saliency": []},
    "regions": [
        {
            "box": [0.5, 0, 1, 0.5],
            "tokens": [1],
            "saliency": 0.8,
            "concepts": [{"name": "espresso", "prob": 0.9}],
        }
    ],
    "passages": [
        {
            "number": 1,
            "id": "notes:a.md",
            "title": "Espresso",
            "text": "Hot water <b>",
            "source": "notes",
            "index": "notes",
            "region": 0,
            "score": 12.3,
            "verification": 0.97,
            "verdict": "kept",
            "reason": "",
            "attention": 1.0,
            "cited": True,
        },
        {
            "number": 2,
            "id": "notes:b.md",
            "title": "Tea",
            "text": "Leaves",
            "source": "notes",
            "index": "notes",
            "region": 0,
            "score": 2.3,
            "verification": 0.1,
            "verdict": "rejected",
            "reason": "",
            "attention": 0.0,
            "cited": False,
        },
    ],
    "stages": [{"name": "encode", "ms": 61.2, "flops": 10, "kept": 4, "dropped": 0, "why": ""}],
    "flops": 21_000_000_000,
    "latency_ms": 612.3,
    "dense": {"flops": 112_000_000_000, "stages": []},
}
ANSWER = {"id": "ask-1", "created": 1, "model": "skipqa-pocket", "skip": OUTLINE, "usage": {}}


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)

    def form(self) -> list[tuple[str, str | None, bytes]]:
        """(name, file name, content) of each part, as the standard library reads them."""
        head = f"Content-Type: {self.headers['content-type']}\r\n\r\n".encode()
        message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + self.body)
        return [
            (
                str(part.get_param("name", header="content-disposition")),
                part.get_filename(),
                part.get_payload(decode=True),
            )
            for part in message.iter_parts()
        ]

    def fields(self) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}
        for name, _, content in self.form():
            found.setdefault(name, []).append(content)
        return found


UNREAD = "X-Unread"  # a reply with this header is given before the request is read
Reply = tuple[int, Any, dict[str, str]]
Respond = Callable[["Handler", Request], Reply | None]


class Server(ThreadingHTTPServer):
    """Answers by `respond`, one reply of `replies` after another if that has some, and remembers
    what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[Request] = []
        self.replies: list[Reply] = []
        self.respond: Respond = lambda handler, request: (200, ANSWER, {})
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def handle_one(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        unread = bool(self.server.replies) and UNREAD in self.server.replies[0][2]
        body = b"" if unread else self.rfile.read(int(headers.get("content-length", 0)))
        request = Request(self.command, self.path, headers, body)
        self.server.requests.append(request)
        reply = (
            self.server.replies.pop(0)
            if self.server.replies
            else self.server.respond(self, request)
        )
        if reply is None:  # it has answered by itself
            return
        status, said, more = reply
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status)
        for name, value in more.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = handle_one

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as one:
        yield one


class serving:
    def __enter__(self) -> Server:
        self.server = Server()
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        return self.server

    def __exit__(self, *args: object) -> None:
        self.server.closing.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(autouse=True)
def no_key_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKIPQA_API_KEY", raising=False)


def refusal(code: str, message: str = "one clear line") -> dict[str, Any]:
    kind = "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


# Questions


def test_an_answer_says_what_the_server_said(server: Server) -> None:
    answer = Client(server.url, KEY).ask(b"a photo", "How is this drink brewed?")
    assert (answer.text, answer.confidence, answer.grounded) == ("under pressure", 0.42, True)
    assert (answer.certainty, answer.route) == ("42% sure; a passage says so", "full")
    assert answer.evidence == (
        ServedPassage("notes:a.md", "Espresso", "Hot water <b>", 0.97, 0),
    ), "only what was cited"
    assert answer.regions[0]["concepts"][0]["name"] == "espresso"
    assert (answer.flops, answer.latency_ms) == (21_000_000_000, 612.3)
    assert answer.raw == ANSWER
    assert hash(answer) == hash(answer)
    with pytest.raises(AttributeError):
        answer.text = "another"  # type: ignore[misc]


def test_a_question_is_sent_as_the_contract_has_it(server: Server) -> None:
    client = Client(server.url + "/", KEY)
    client.ask(
        *(b"\x00\r\n--photo", "Wie heißt das?\r\n\r\n--x"),
        index=["default", "notes"],
        fast_path=False,
        tokens=12,
        passages=0,
        threshold=0.5,
        system="dense",
    )
    client.ask(None, "Why?", index="notes")
    first, second = server.requests
    assert (first.method, first.path) == ("POST", "/v1/ask")
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert first.fields() == {
        "photo": [b"\x00\r\n--photo"],
        "question": ["Wie heißt das?\r\n\r\n--x".encode()],
        "index": [b"default", b"notes"],
        "fast_path": [b"false"],
        "tokens": [b"12"],
        "passages": [b"0"],
        "threshold": [b"0.5"],
        "system": [b"dense"],
    }
    assert second.fields() == {
        "question": [b"Why?"],
        "index": [b"notes"],
        "fast_path": [b"true"],
        "system": [b"skip"],
    }


def picture(size: tuple[int, int] = (40, 30)) -> Image.Image:
    return Image.radial_gradient("L").resize(size).convert("RGB")


def test_any_kind_of_photo_arrives(server: Server, tmp_path: Path) -> None:
    file = io.BytesIO()
    picture().save(file, "PNG")
    data, path = file.getvalue(), tmp_path / "tasse é.png"
    path.write_bytes(data)
    client = Client(server.url)
    for photo in (path, str(path), data, bytearray(data), io.BytesIO(data)):
        client.ask(photo, "What is this?")  # type: ignore[arg-type]
        assert server.requests[-1].fields()["photo"] == [data]
    client.ask(picture().convert("CMYK"), "What is this?")
    (sent,) = server.requests[-1].fields()["photo"]
    with Image.open(io.BytesIO(sent)) as arrived:
        assert (arrived.format, arrived.mode, arrived.size) == ("PNG", "RGB", (40, 30))
    client.ask(picture((2_500, 2_000)), "What is this?")
    (sent,) = server.requests[-1].fields()["photo"]
    with Image.open(io.BytesIO(sent)) as arrived:
        assert (arrived.format, arrived.size) == ("JPEG", (2_500, 2_000))


@pytest.mark.parametrize("photo", ["no/such/photo.jpg", io.StringIO("text"), 7])
def test_what_is_no_photo_is_refused_here(server: Server, photo: Any) -> None:
    with pytest.raises(UserError, match=r"photo"):
        Client(server.url).ask(photo, "What is this?")
    assert not server.requests


def test_an_answer_shows_itself_in_a_notebook(server: Server, tmp_path: Path) -> None:
    picture().save(path := tmp_path / "photo.png")
    client = Client(server.url)
    shown = client.ask(path, "What is this?")._repr_html_()
    assert "data:image/jpeg;base64," in shown
    assert "Hot water &lt;b&gt;" in shown
    assert client.ask(picture(), "What?")._repr_html_() == shown
    answer = client.ask(path, "What is this?")
    path.unlink()
    assert "under pressure" in answer._repr_html_()
    assert "<svg" not in answer._repr_html_()
    assert "<svg" not in client.ask(None, "What is this?")._repr_html_()


# Keys and addresses


def test_the_key_is_shown_nowhere(server: Server) -> None:
    client = Client(f"{server.url}/?key={KEY}")
    assert KEY not in repr(client) + client.url
    server.respond = lambda handler, request: (401, refusal("invalid_key", "no such key"), {})
    with pytest.raises(ClientError, match="no such key") as refused:
        client.models()
    assert KEY not in str(refused.value)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    server.respond = lambda handler, request: (200, {"status": "ok"}, {})
    assert client.health() == "ok"
    assert "authorization" not in server.requests[-1].headers, "health needs none"


def test_where_the_key_comes_from(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(*args: str) -> str | None:
        Client(*args).ask(None, "Why?")
        return server.requests[-1].headers.get("authorization")

    assert sent(server.url) is None
    monkeypatch.setenv("SKIPQA_API_KEY", "from-outside\n")
    assert sent(server.url) == "Bearer from-outside"
    assert sent(server.url + "?key=from-address") == "Bearer from-address"
    assert sent(server.url + "?key=from-address", "given") == "Bearer given"
    assert sent(server.url, "") is None


def test_without_a_key_the_way_to_one_is_named(server: Server) -> None:
    server.respond = lambda handler, request: (401, refusal("missing_key", "a key is needed"), {})
    with pytest.raises(ClientError, match=r"a key is needed \(give a key, or set SKIPQA_API_KEY"):
        Client(server.url).models()


@pytest.mark.parametrize("key", ["two\r\nX-Lines: 1", "naïve", "with space"])
def test_a_key_is_no_place_for_other_headers(key: str) -> None:
    with pytest.raises(UserError, match="copy it again") as refused:
        Client("http://127.0.0.1:1", key)
    assert key not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:8000", "ftp://host", "http://", "http://user:word@host", "http://:@host"),
        *(
            "http://host#part",
            "http://host?other=1",
            "http://host:port",
            "http://[::1",
            "file:///x",
        ),
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UserError, match="address"):
        Client(url)


def test_redirects_are_not_followed(server: Server) -> None:
    with serving() as other:
        for status in (301, 302, 303, 307, 308):
            server.replies = [(status, b"", {"Location": other.url + "/v1/models"})]
            with pytest.raises(ClientError, match="leads to another address") as refused:
                Client(server.url, KEY).models()
            assert refused.value.status == status
        assert not other.requests


def test_proxies_of_the_environment_are_not_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        Client(server.url, KEY).ask(None, "Why?")
        assert not proxy.requests


def test_a_server_may_lie_under_a_path(server: Server) -> None:
    Client(server.url + "/qa/").ask(None, "Why?")
    assert server.requests[0].path == "/qa/v1/ask"


# Refusals, waiting and silence


def test_the_servers_line_is_the_error(server: Server) -> None:
    said = refusal("image_too_large", "the image\nis too   large")
    server.respond = lambda handler, request: (413, said, {})
    with pytest.raises(ClientError, match=r"^the image is too large$") as refused:
        Client(server.url).ask(b"", "Why?")
    assert isinstance(refused.value, UserError)
    assert (refused.value.status, refused.value.code) == (413, "image_too_large")
    assert len(server.requests) == 1


def test_a_busy_server_is_asked_again_when_it_says(server: Server) -> None:
    busy = (429, refusal("busy"), {"Retry-After": "1"})
    server.replies = [busy, (503, refusal("draining"), {})]
    answer = Client(server.url, timeout=20).ask(io.BytesIO(b"a photo"), "Why?")
    assert answer.text == "under pressure"
    first, second, third = server.requests
    assert second.at - first.at >= 1
    assert third.at - second.at >= module.SHORTEST_PAUSE
    for request in server.requests:
        assert request.fields()["photo"] == [b"a photo"]


def test_a_pause_longer_than_the_timeout_is_not_begun(server: Server) -> None:
    server.replies = [(429, refusal("busy", "too many questions"), {"Retry-After": "3600"})]
    with pytest.raises(ClientError, match="too many questions") as refused:
        Client(server.url, timeout=20).ask(None, "Why?")
    assert (refused.value.status, refused.value.code) == (429, "busy")
    assert len(server.requests) == 1


@pytest.mark.parametrize("after", ["0", "Wed, 21 Oct 2015 07:28:00 GMT", "-1", "soon", ""])
def test_waiting_for_a_busy_server_ends(server: Server, after: str) -> None:
    said = {"Retry-After": after}
    server.respond = lambda handler, request: (503, refusal("draining"), said)
    started = time.monotonic()
    with pytest.raises(ClientError):
        Client(server.url, timeout=0.8).ask(None, "Why?")
    assert time.monotonic() - started < 10
    assert 1 <= len(server.requests) <= 4


def test_a_silent_server_is_not_waited_for(server: Server) -> None:
    def silent(handler: Handler, request: Request) -> None:
        server.closing.wait(20)

    server.respond = silent
    with pytest.raises(ClientError, match=r"no answer from http://127\.0\.0\.1:\d+ within 0\.3 s"):
        Client(server.url, timeout=0.3).ask(None, "Why?")


def test_nor_is_one_that_never_ends(server: Server) -> None:
    def endless(handler: Handler, request: Request) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not server.closing.wait(0.02):
            handler.wfile.write(b" ")

    server.respond = endless
    started = time.monotonic()
    with pytest.raises(ClientError, match="within"):
        Client(server.url, timeout=0.4).ask(None, "Why?")
    assert time.monotonic() - started < 5


def test_a_reply_has_an_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_REPLY", 1_000)
    server.respond = lambda handler, request: (200, b" " * 2_000, {})
    with pytest.raises(ClientError, match="too long"):
        Client(server.url).ask(None, "Why?")


@pytest.mark.parametrize(
    "said",
    [
        *(b"<html>", b"", b"[]", b"{}", b"[" * 100_000, {"skip": None}, {"skip": {"answer": "x"}}),
        {"skip": {**OUTLINE, "flops": "many"}},
        {"skip": {**OUTLINE, "passages": [1]}},
    ],
)
def test_another_kind_of_server_is_recognized(server: Server, said: Any) -> None:
    server.respond = lambda handler, request: (200, said, {})
    with pytest.raises(ClientError, match="does not answer like skipqa serve"):
        Client(server.url).ask(None, "Why?")
    server.respond = lambda handler, request: (500, said, {})
    with pytest.raises(ClientError, match=r"does not answer like skipqa serve \(status 500\)"):
        Client(server.url).models()


def test_nobody_there() -> None:
    with serving() as gone:
        url = gone.url
    with pytest.raises(ClientError, match=r"no answer from .*: Connection refused") as refused:
        Client(url).ask(None, "Why?")
    assert refused.value.status is None
    with pytest.raises(ClientError, match="no answer from http://no host"):
        Client("http://no host").models()


def test_health_and_waiting_for_it(server: Server) -> None:
    server.replies = [(503, {"status": "loading"}, {}), (503, {"status": "draining"}, {})]
    client = Client(server.url)
    assert client.health() == "loading"
    assert client.health() == "draining"
    server.replies = [(503, {"status": "loading"}, {}), (502, b"", {}), (200, {"status": "ok"}, {})]
    client.wait(20)
    assert len(server.requests) == 5
    server.respond = lambda handler, request: (503, {"status": "loading"}, {})
    with pytest.raises(ClientError, match=r"is not ready after 0\.3 s: loading"):
        client.wait(0.3)
    server.respond = lambda handler, request: (502, b"", {})
    with pytest.raises(ClientError, match="does not answer like skipqa serve"):
        client.health()


def test_waiting_for_a_server_that_is_not_started() -> None:
    with serving() as gone:
        url = gone.url
    with pytest.raises(ClientError, match=r"is not ready after 0\.2 s: no answer"):
        Client(url).wait(0.2)


def test_threads_may_use_one_client(server: Server) -> None:
    server.respond = lambda handler, request: (
        200,
        {"skip": {**OUTLINE, "answer": request.fields()["question"][0].decode()}},
        {},
    )
    client, found = Client(server.url), {}

    def ask(question: str) -> None:
        found[question] = client.ask(None, question).text

    threads = [threading.Thread(target=ask, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {str(n): str(n) for n in range(8)}


# Models and indexes


def test_models_indexes_and_deleting(server: Server) -> None:
    listed = [{"id": "skipqa-pocket"}]
    server.respond = lambda handler, request: (200, {"object": "list", "data": listed}, {})
    client = Client(server.url)
    assert client.models() == client.indexes() == listed
    client.delete_index("my-notes_2")
    asked = [(request.method, request.path) for request in server.requests]
    assert asked == [
        ("GET", "/v1/models"),
        ("GET", "/v1/indexes"),
        ("DELETE", "/v1/indexes/my-notes_2"),
    ]


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "-a", "a" * 65, "a\n", "é"])
def test_names_that_no_index_has(server: Server, name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no name of an index"):
        Client(server.url).delete_index(name)
    with pytest.raises(UserError, match="is no name of an index"):
        Client(server.url).build_index(name, tmp_path)
    assert not server.requests


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder with all that folders have."""
    (folder := tmp_path / "notes").mkdir()
    for name, text in {
        "a.md": "# Espresso",
        "deep/er/b.txt": "",
        "deep/naïve name.md": "é",
        ".env": "a secret",
        ".git/config": "hidden",
        "deep/.hidden": "hidden",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (tmp_path / "outside.txt").write_text("not part of it")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "inner.md").symlink_to("a.md")
    (folder / "broken.md").symlink_to("nowhere")
    return folder


def index(status: str, **more: Any) -> Reply:
    progress = {"step": "encoding", "done": 3, "total": None}
    return (
        202 if status == "building" else 200,
        {"status": status, "progress": progress, **more},
        {},
    )


def test_a_folder_is_sent_and_indexed(server: Server, notes: Path) -> None:
    server.replies = [index("building"), index("building"), index("ready", passages=7)]
    seen: list[tuple[str, int, int | None]] = []
    client = Client(server.url, KEY)
    paths = [notes, str(notes.parent / "outside.txt")]
    found = client.build_index("my-notes", paths, progress=lambda *step: seen.append(step))
    assert found["passages"] == 7
    upload, *polls = server.requests
    assert [request.path for request in polls] == ["/v1/indexes/my-notes"] * 2
    assert (upload.method, upload.path) == ("POST", "/v1/indexes")
    assert upload.fields()["name"] == [b"my-notes"]
    sent = {name: content for field, name, content in upload.form() if field == "files"}
    assert sent == {
        "notes/a.md": b"# Espresso",
        "notes/inner.md": b"# Espresso",
        "notes/deep/er/b.txt": b"",
        "notes/deep/naïve name.md": "é".encode(),
        "outside.txt": b"not part of it",
    }
    uploading = [(done, total) for step, done, total in seen if step == "uploading"]
    assert uploading == sorted(uploading)
    assert uploading[-1] == (len(upload.body), len(upload.body))
    assert seen[-1] == ("encoding", 3, None)


def test_an_index_need_not_be_waited_for(server: Server, notes: Path) -> None:
    server.replies = [index("building")]
    found = Client(server.url).build_index("notes", notes / "a.md", wait=False)
    assert found["status"] == "building"
    assert len(server.requests) == 1


def test_why_an_index_was_not_built(server: Server, notes: Path) -> None:
    server.replies = [index("building"), index("failed", error="no text in any file")]
    with pytest.raises(ClientError, match="notes was not built: no text in any file") as refused:
        Client(server.url).build_index("notes", notes)
    assert refused.value.code == "build_failed"
    server.replies = [(409, refusal("index_busy", "notes is being built"), {})]
    with pytest.raises(ClientError, match="notes is being built"):
        Client(server.url).build_index("notes", notes)


def test_nothing_to_send(server: Server, notes: Path) -> None:
    client = Client(server.url)
    (notes.parent / "empty").mkdir()
    with pytest.raises(UserError, match="no file to send"):
        client.build_index("notes", notes.parent / "empty")
    with pytest.raises(UserError, match="no such file or folder"):
        client.build_index("notes", notes / "none.md")
    with pytest.raises(UserError, match="have the same name"):
        client.build_index("notes", [notes, notes])
    assert not server.requests


def sparse(path: Path, size: int) -> Path:
    """A file of zeros that takes no room on the disk."""
    with path.open("wb") as file:
        os.truncate(file.fileno(), size)
    return path


def test_a_refusal_in_the_middle_of_an_upload_is_read(server: Server, tmp_path: Path) -> None:
    said = refusal("upload_too_large", "more than the quota")
    server.replies = [(413, said, {UNREAD: "1", "Connection": "close"})]
    with pytest.raises(ClientError, match="more than the quota") as refused:
        Client(server.url).build_index("notes", sparse(tmp_path / "large.txt", 256 << 20))
    assert refused.value.status == 413


def test_a_large_upload_takes_little_memory(tmp_path: Path) -> None:
    form, size = Form(), 64 << 20
    form.add_file("files", "large.txt", sparse(tmp_path / "large.txt", size))
    tracemalloc.start()
    try:
        sent = sum(map(len, form))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sent == len(form) > size
    assert peak < 1 << 20


def test_an_upload_may_take_longer_than_an_answer(server: Server, notes: Path) -> None:
    """As long as it moves."""
    for name in "cdef":
        (notes / f"{name}.md").write_text(name)
    server.replies = [index("ready")]

    def slow(step: str, done: int, total: int | None) -> None:
        server.closing.wait(0.05)

    started = time.monotonic()
    Client(server.url, timeout=1.0).build_index("notes", notes, progress=slow)
    assert time.monotonic() - started > 1.0


def test_a_file_that_shrinks_meanwhile_is_named(tmp_path: Path) -> None:
    form, path = Form(), tmp_path / "log.txt"
    path.write_bytes(b"x" * 100)
    form.add_file("files", "log.txt", path)
    path.write_bytes(b"x" * 10)
    with pytest.raises(UserError, match=r"log\.txt became shorter"):
        list(form)
    path.write_bytes(b"x" * 1_000)
    assert sum(map(len, form)) == len(form), "as much as was announced"
    path.unlink()
    with pytest.raises(UserError, match=r"cannot read .*log\.txt"):
        list(form)


# The form itself

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
FORMS = st.tuples(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=60), max_size=3),
    st.lists(st.tuples(NAMES, st.binary(max_size=200)), max_size=4),
)


def made(texts: list[str], files: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    form = Form()
    for text in texts:
        form.add("question", text)
    for name, content in files:
        form.add_file("files", name, content)
    body = b"".join(form)
    assert len(body) == len(form)
    assert b"".join(form) == body, "a form can be sent again"
    return form.content_type, body


def written(name: str) -> str:
    """What arrives of a file name."""
    return re.sub(r'["\\\x00-\x1f\x7f]', lambda found: f"%{ord(found[0]):02X}", name)


@given(FORMS)
def test_a_form_is_read_back_by_a_servers_parser(
    form: tuple[list[str], list[tuple[str, bytes]]],
) -> None:
    multipart = pytest.importorskip("python_multipart")
    texts, files = form
    content_type, body = made(texts, files)
    fields: list[bytes | None] = []
    uploads: list[tuple[bytes | None, bytes]] = []

    def on_file(file: Any) -> None:
        file.file_object.seek(0)
        uploads.append((file.file_name, file.file_object.read()))

    parser = multipart.create_form_parser(
        {"Content-Type": content_type.encode()},
        lambda one: fields.append(one.value),
        on_file,
    )
    parser.write(body)
    parser.finalize()
    assert [value or b"" for value in fields] == [text.encode() for text in texts]
    assert uploads == [(written(name).encode(), content) for name, content in files]


@given(FORMS)
def test_and_by_the_standard_library(form: tuple[list[str], list[tuple[str, bytes]]]) -> None:
    texts, files = form
    content_type, body = made(texts, files)
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.compat32).parsebytes(head + body)
    parts = message.get_payload()
    assert len(parts) == len(texts) + len(files)
    contents = [part.get_payload(decode=True) for part in parts]
    assert contents == [*(text.encode() for text in texts), *(data for _, data in files)]


def test_the_client_is_light() -> None:
    code = "import sys, skipqa.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"torch", "numpy", "PIL", "httpx", "requests", "typer"}
