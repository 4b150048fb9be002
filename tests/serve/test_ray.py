"""The application as two Ray Serve replicas over one index, in a real local cluster."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.server_process import COMMAND
from skipqa.client import Client, ClientError

KEY = "a-key-for-this-test"


@pytest.fixture(scope="module")
def address(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("ray.serve")  # not above: every worker of pytest would import it
    pytest.importorskip("fastapi")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("ray") / "log"
    # Ray starts next to the trace of a cluster that died; its sockets take at most 107 characters
    short = Path(tempfile.mkdtemp(prefix="r"))
    (short / "ray").mkdir()
    (short / "ray/ray_current_cluster").write_text("127.0.0.1:1")
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    with log.open("w") as output:
        server = subprocess.Popen(
            [*COMMAND, "--ray", "--workers", "2", "--port", str(port)],
            stdout=output,
            stderr=output,
            env={**environment, "SKIPQA_API_KEYS": KEY, "RAY_TMPDIR": str(short)},
        )
    try:
        # Ray and two replicas start, on whatever cores are free
        Client(f"http://127.0.0.1:{port}", KEY).wait(300)
        yield f"http://127.0.0.1:{port}"
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0, log.read_text()
    finally:
        server.kill()
        shutil.rmtree(short, ignore_errors=True)


def test_two_replicas_answer(address: str, photo: Path) -> None:
    client = Client(address, KEY)

    def ask(_: int) -> str:
        return client.ask(photo, "How is this drink brewed?").text

    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(ask, range(6)))
    assert len(set(answers)) == 1
    assert "hot water" in answers[0]


def test_the_guard_stands_before_every_replica(address: str, photo: Path) -> None:
    for key in ("", "another-key"):
        with pytest.raises(ClientError) as refused:
            Client(address, key).ask(photo, "What is this?")
        assert refused.value.status == 401


def test_documents_cannot_be_uploaded(address: str, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("A note.")
    with pytest.raises(ClientError, match="takes no documents"):
        Client(address, KEY).build_index("notes", tmp_path / "note.txt")
