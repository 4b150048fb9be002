"""A `skipqa serve` in a process of its own, for benchmarks and tests.

Enters: options of the command. Leaves: its address, exchanges with it, its worker processes and
what memory they hold. A request is sent by one call and its response read by another, so that
between the two its caller may do something else, or leave. It does not judge a response.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from skipqa.client import Form

COMMAND = (sys.executable, "-c", "from skipqa.cli.main import run; run()", "serve")
LISTENS = re.compile(
    r"skipqa listens at http://(?P<host>[^:/]+):(?P<port>\d+)/(\?key=(?P<key>.+))?"
)
POLL_S = 0.05
START_S, REPLY_S = 120.0, 300.0  # generous: the machine may be busy with something else
WORKER = "skipqa.serve.worker"


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Memory(NamedTuple):
    """Of one process, in MB."""

    rss: float  # all that is in memory
    pss: float  # a page that n processes hold counts 1/n
    anonymous: float  # without pages of files, which come in as they are read and may go again


class Exchange:
    """A request that was sent."""

    def __init__(self, connection: HTTPConnection) -> None:
        self.connection = connection

    def answered(self) -> bool:
        """Whether a response has begun to come, or the connection was closed."""
        readable, _, _ = select.select([self.connection.sock], [], [], 0)
        return bool(readable)

    def reply(self) -> Reply:
        """The whole response; `HTTPException` or `OSError` if none comes."""
        with closing(self.connection):
            response = self.connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, headers, response.read())

    def leave(self) -> None:
        """As a client that does not wait."""
        self.connection.close()


class ServerProcess:
    """Listens when it is constructed; `wait_ready` waits for its models."""

    def __init__(self, *options: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the server)
        self.process = subprocess.Popen(
            [*COMMAND, *options], stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self.process.stdout is not None
        found = LISTENS.fullmatch(self.process.stdout.readline().strip())
        if found is None:
            printed = self.log()
            self.close()
            raise RuntimeError(f"the server does not listen: {printed}")
        self.host, self.port, self.key = found["host"], int(found["port"]), found["key"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """At once, whatever it is doing."""
        self.end(signal.SIGKILL)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        """What it wrote to standard error so far."""
        self._log.seek(0)
        return self._log.read()

    def end(self, number: signal.Signals, timeout_s: float = START_S) -> int:
        """Its exit code after the signal; by SIGKILL if it takes longer than it may."""
        if self.alive:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    # Requests

    def send(
        self,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Exchange:
        """A POST if there is a body, on a connection of its own."""
        connection = HTTPConnection(self.host, self.port, timeout=REPLY_S)
        key = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        method = "GET" if body is None else "POST"
        connection.request(method, path, body, {**key, **(headers or {})})
        return Exchange(connection)

    def get(self, path: str) -> Reply:
        return self.send(path).reply()

    def send_json(self, path: str, value: Any) -> Exchange:
        return self.send(path, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def ask(self, question: str, photo: bytes = b"", **fields: str) -> Exchange:
        """POST /v1/ask."""
        form = Form()
        for name, value in {"question": question, **fields}.items():
            form.add(name, value)
        if photo:
            form.add_file("photo", "photo", photo)
        return self.send("/v1/ask", b"".join(form), {"Content-Type": form.content_type})

    # What it is doing

    def health(self) -> str:
        """ok, loading, draining, or refused."""
        try:
            return str(self.get("/health").json()["status"])
        except OSError:
            return "refused"

    def wait_ready(self) -> None:
        self.wait_for(lambda: self.health() == "ok")

    def wait_for(self, condition: Callable[[], bool]) -> float:
        """Seconds until the condition holds; an error if the server ends before."""
        seconds = wait_until(lambda: condition() or not self.alive)
        assert self.alive or condition(), self.log()
        return seconds

    def metric(self, name: str) -> float:
        text = self.get("/metrics").body.decode()
        found = re.search(rf"^skipqa:{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def num_questions(self) -> int:
        """Taken on and not answered yet."""
        return round(self.metric("num_requests_running") + self.metric("num_requests_waiting"))

    def workers(self) -> list[int]:
        """Process ids of its workers."""
        return [pid for pid in children(self.process.pid) if WORKER in command_line(pid)]


def wait_until(condition: Callable[[], bool], timeout_s: float = START_S) -> float:
    """Seconds until it holds, of what no event tells."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > timeout_s:
            raise TimeoutError(f"nothing has come of it in {timeout_s:.0f} s")
        time.sleep(POLL_S)
    return time.monotonic() - start


# Of any process, from Linux's /proc


def children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(after_name[1]) == pid and after_name[0] != "Z":
                found.append(int(folder.name))
    return sorted(found)


def command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie that nobody has waited for."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def memory(pid: int) -> Memory:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kilobytes = dict(re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE))
    return Memory(*(int(kilobytes[name]) / 1e3 for name in ("Rss", "Pss", "Anonymous")))


def cpu_seconds(pid: int) -> float:
    """Spent so far, by all its threads."""
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
