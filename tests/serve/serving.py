"""A real server for tests: one process for many of them, started again where a test has ended it.

Enters: options of `skipqa serve`. Leaves: a server that is ready. What can be asked of it is in
`benchmarks/server_process.py`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.server_process import COMMAND, ServerProcess

LOCAL = ("--port", "0", "--no-uploads")  # any port, and no folder that another server may have


class SharedServer:
    def __init__(self, *options: str) -> None:
        self.options = options
        self._server: ServerProcess | None = None

    def ready(self) -> ServerProcess:
        if self._server is None or not self._server.alive:
            self.close()
            self._server = ServerProcess(*LOCAL, *self.options)
        self._server.wait_ready()
        return self._server

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


@contextmanager
def shared_server(*options: str) -> Iterator[SharedServer]:
    shared = SharedServer(*options)
    try:
        yield shared
    finally:
        shared.close()


def begin(*options: str) -> subprocess.Popen[str]:
    """The command as a user types it, with all that it prints."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, *options], text=True, **pipes)
