"""What the processes of a server do when one of them, a client or the whole server goes away.

A real server with its models and one worker answers about a real photo. A question that is sent is
an exchange whose response can be read later, so nothing here depends on threads.
"""

from __future__ import annotations

import base64
import fcntl
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from serving import SharedServer, begin, shared_server

from benchmarks.server_process import Exchange, ServerProcess, is_running, kill, wait_until
from skipqa.serve.store import LOCK

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads processes in /proc")

MAX_QUESTIONS = 3
QUESTION = "How is this drink brewed?"
SLOW = {"system": "dense", "fast_path": "false"}  # seconds
LOOKED_UP = {"fast_path": "false"}
DRAFTED = {"threshold": "0"}  # every draft is accepted


@pytest.fixture(scope="module")
def shared(home: Path) -> Iterator[SharedServer]:
    with shared_server("--workers", "1", "--max-questions", str(MAX_QUESTIONS)) as shared:
        yield shared


@pytest.fixture
def server(shared: SharedServer) -> ServerProcess:
    """Ready, and without questions of another test."""
    server = shared.ready()
    server.wait_for(lambda: server.num_questions() == 0)
    return server


@pytest.fixture(scope="module")
def image(photo: Path) -> bytes:
    return photo.read_bytes()


def counts(server: ServerProcess) -> tuple[float, float]:
    """Questions that run and that wait."""
    return server.metric("num_requests_running"), server.metric("num_requests_waiting")


def taken_on(server: ServerProcess, image: bytes, *asked: dict[str, str]) -> list[Exchange]:
    exchanges = [server.ask(QUESTION, image, **fields) for fields in asked]
    server.wait_for(lambda: server.num_questions() == len(asked))
    return exchanges


def leave(server: ServerProcess, exchanges: list[Exchange]) -> None:
    for exchange in exchanges:
        exchange.leave()
    server.wait_for(lambda: server.num_questions() == 0)


def test_a_question_has_a_deadline(server: ServerProcess, image: bytes) -> None:
    url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    parts = [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {"url": url}}]
    messages = [{"role": "user", "content": parts}]
    body = {"model": "skipqa-pocket", "messages": messages, "skip": {"timeout": 0.001}}
    reply = server.send_json("/v1/chat/completions", body).reply()
    assert (reply.status, reply.json()["error"]["code"]) == (504, "timeout")
    assert counts(server) == (0, 0)


def test_a_draft_does_not_wait_and_who_leaves_is_not_counted(
    server: ServerProcess, image: bytes
) -> None:
    slow = taken_on(server, image, SLOW, LOOKED_UP)
    drafted = server.ask(QUESTION, image, **DRAFTED).reply()
    assert (drafted.status, drafted.json()["skip"]["route"]) == (200, "draft")
    assert not any(exchange.answered() for exchange in slow)
    assert counts(server) == (1, 1)  # one is looked up, the other waits for it
    leave(server, slow)
    assert counts(server) == (0, 0)
    assert "Traceback" not in server.log()


def test_more_questions_than_it_takes_on_are_refused(server: ServerProcess, image: bytes) -> None:
    slow = taken_on(server, image, *([SLOW] * MAX_QUESTIONS))
    refused = server.ask(QUESTION, image).reply()
    assert (refused.status, refused.json()["error"]["code"]) == (429, "server_busy")
    assert int(refused.headers["retry-after"]) >= 1
    leave(server, slow)


def test_questions_of_a_killed_worker_are_answered(server: ServerProcess, image: bytes) -> None:
    asked = taken_on(server, image, LOOKED_UP, DRAFTED | {"fast_path": "false"})
    (worker,) = server.workers()
    kill(worker)
    server.wait_for(lambda: server.health() == "loading")
    replies = [exchange.reply() for exchange in asked]
    assert [reply.status for reply in replies] == [200, 200]
    assert all(reply.json()["skip"]["answer"] for reply in replies)
    assert server.health() == "ok"
    assert server.workers() != [worker]
    assert server.ask(QUESTION, image, **DRAFTED).reply().status == 200


def test_a_server_that_is_stopped_answers_what_it_took_on(
    server: ServerProcess, image: bytes
) -> None:
    asked = taken_on(server, image, LOOKED_UP, LOOKED_UP)
    workers = server.workers()
    server.process.send_signal(signal.SIGTERM)
    server.wait_for(lambda: server.health() == "refused")
    assert [exchange.reply().status for exchange in asked] == [200, 200]
    assert server.end(signal.SIGTERM) == 0
    assert not any(map(is_running, workers))
    assert "Traceback" not in server.log()


def test_workers_end_with_a_server_that_is_killed(server: ServerProcess, image: bytes) -> None:
    taken_on(server, image, SLOW)
    (worker,) = server.workers()
    assert server.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: not is_running(worker), timeout_s=10)


def test_what_cannot_be_served_is_told_in_one_line(home: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with socket.socket() as taken, (store / LOCK).open("w") as lock:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = str(tmp_path / "missing")
        begun = {
            f"cannot listen at 127.0.0.1:{port}": begin("--no-uploads", "--port", port),
            f"no index at {missing}": begin("--no-uploads", "--port", "0", "--index", missing),
            f"another server uses {store}": begin("--port", "0", "--store", str(store)),
        }
        for told, process in begun.items():
            _, printed = process.communicate(timeout=120)
            *_, last = printed.splitlines()
            assert last.startswith(f"error: {told}"), printed
            assert "Traceback" not in printed
            assert process.returncode == 2
