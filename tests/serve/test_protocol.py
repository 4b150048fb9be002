"""Connections of a real uvicorn: who is silent is cut off, but not who waits for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("uvicorn")

import uvicorn
from starlette.types import Receive, Scope, Send

from skipqa.serve import protocol
from skipqa.serve.protocol import BoundedProtocol

IDLE_S = 0.2
REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
ANSWER = b"answered"


async def slow(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers when any idle connection is long closed."""
    await asyncio.sleep(3 * IDLE_S)
    length = (b"content-length", str(len(ANSWER)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": ANSWER})


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    config = uvicorn.Config(slow, port=0, http=BoundedProtocol, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    (listening,) = server.servers[0].sockets
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await serving


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "IDLE_S", IDLE_S)


def test_an_answer_may_take_longer_than_silence() -> None:
    async def asked() -> None:
        async with connected() as (reader, writer):
            for _ in range(2):  # also on a connection that was used before
                writer.write(REQUEST)
                assert (await reader.readuntil(ANSWER)).startswith(b"HTTP/1.1 200")

    asyncio.run(asked())


@pytest.mark.parametrize("sent", [b"", REQUEST[:10]])
def test_who_sends_no_whole_head_is_cut_off(sent: bytes) -> None:
    async def asked() -> None:
        async with connected() as (reader, writer):
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(), 10) == b""

    asyncio.run(asked())


def test_half_a_head_after_an_answer_is_cut_off() -> None:
    async def asked() -> None:
        async with connected() as (reader, writer):
            writer.write(REQUEST)
            await reader.readuntil(ANSWER)
            writer.write(REQUEST[:10])
            assert await asyncio.wait_for(reader.read(), 10) == b""

    asyncio.run(asked())
