"""A running `build_index`, as the server sees it.

Enters: the folder of a generation. Leaves: progress while the process runs, and its last word. It
does not know what becomes of the index.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from skipqa.serve.index_jobs import Progress

MAX_LINE = 1 << 20
STOP_S = 10.0  # for a process to end by itself

Message = dict[str, Any]  # {"ready": {...}}, {"failed": "one line"}, or anything else if it died


class BuildProcess:
    """Start one with `start`, and `close` it in any case."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @staticmethod
    async def start(folder: Path, room: int) -> BuildProcess:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "skipqa.serve.build_index"),
            *(str(folder), "--room", str(room)),
            stdin=PIPE,
            stdout=PIPE,
            limit=MAX_LINE,
            start_new_session=True,  # Ctrl-C is for the server, which ends its builds
        )
        return BuildProcess(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def follow(self, tell: Callable[[Progress], None]) -> Message:
        """The last word of the process."""
        assert self._process.stdout is not None
        last: Message = {}
        async for line in self._process.stdout:
            if not line.endswith(b"\n"):  # killed while writing
                break
            last = json.loads(line)
            if "step" in last:
                tell(Progress(**last))
                await asyncio.sleep(0)  # whoever waits sees every step
        return last

    async def end(self) -> None:
        """Asks the process to stop where the next one can go on."""
        assert self._process.stdin is not None
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(STOP_S):
                self._process.stdin.write(b"stop\n")
                await self._process.stdin.drain()
                await self._process.wait()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        self.kill()
        await self._process.communicate()  # also reads to the end, which frees the pipes
