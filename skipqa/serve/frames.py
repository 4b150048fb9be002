"""What the HTTP process and its workers say to each other: JSON and bytes, framed by length.

Enters: a header that JSON can write, and bytes (a photo, or none). Leaves: the same on the other
side of a pipe. Nothing here can run code, whatever the bytes are.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import IO, Any, NamedTuple

LENGTHS = struct.Struct(">II")  # of the header and of the bytes
MAX_PART = 1 << 28  # more is a broken pipe, not a message


class Frame(NamedTuple):
    header: dict[str, Any]
    body: bytes = b""


def packed(frame: Frame) -> bytes:
    header = json.dumps(frame.header, ensure_ascii=False).encode()
    return LENGTHS.pack(len(header), len(frame.body)) + header + frame.body


def _lengths(prefix: bytes) -> tuple[int, int]:
    of_header, of_body = LENGTHS.unpack(prefix)
    if max(of_header, of_body) > MAX_PART:
        raise EOFError("what comes through the pipe is no frame")
    return of_header, of_body


def read(stream: IO[bytes]) -> Frame:
    """The next frame; EOFError when the other side is gone."""
    of_header, of_body = _lengths(_exactly(stream, LENGTHS.size))
    return Frame(json.loads(_exactly(stream, of_header)), _exactly(stream, of_body))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    found = stream.read(size)  # a buffered reader: less than `size` is the end
    if len(found) < size:
        raise EOFError("the other side is gone")
    return found


async def receive(stream: asyncio.StreamReader) -> Frame:
    """As `read`, of an asyncio stream."""
    try:
        of_header, of_body = _lengths(await stream.readexactly(LENGTHS.size))
        header = await stream.readexactly(of_header)
        return Frame(json.loads(header), await stream.readexactly(of_body))
    except asyncio.IncompleteReadError:
        raise EOFError("the other side is gone") from None
