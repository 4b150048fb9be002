"""A real `skipqa serve` with a key and a store, and what its log says of a suite.

Enters: a folder for its store and its log. Leaves: where it listens, and which statuses it gave.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.server_process import ServerProcess

KEY = "sk-suites-and-clients"  # VLMEvalKit refuses a key that begins otherwise
MODEL = "skipqa-pocket"
MAX_QUESTIONS = 8  # at a time: few, so that a client can be made to meet a busy server
REQUEST = re.compile(r"INFO [A-Z]+ \S+ (\d{3}) \d+ ms$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Running:
    process: ServerProcess

    @property
    def url(self) -> str:
        return f"http://{self.process.host}:{self.process.port}"

    def environment(self) -> dict[str, str]:
        """For what runs in a process of its own."""
        told = {"SUITES_URL": self.url, "SUITES_KEY": KEY, "SUITES_MODEL": MODEL}
        return {**os.environ, **told, "OPENAI_API_KEY": KEY, "NO_PROXY": self.process.host}

    def statuses(self, begin: int = 0) -> dict[str, int]:
        """How often each was answered since the log had `begin` characters."""
        return dict(sorted(Counter(REQUEST.findall(self.process.log()[begin:])).items()))

    def workers_lost(self) -> int:
        return self.process.log().count("a worker process ended")


@contextmanager
def running(folder: Path, workers: int = 1) -> Iterator[Running]:
    keys = folder / "keys.txt"
    keys.write_text(KEY)
    with ServerProcess(
        *("--port", "0", "--workers", str(workers), "--key-file", str(keys)),
        *("--store", str(folder / "store"), "--max-questions", str(MAX_QUESTIONS), "--grace", "5"),
    ) as process:
        process.wait_ready()
        yield Running(process)
        (folder / "serve.log").write_text(process.log())
        process.end(signal.SIGTERM)
