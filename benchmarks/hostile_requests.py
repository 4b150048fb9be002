"""Requests that no honest client sends, byte by byte, and what is wrong with a response to them.

Enters: where a server listens. Leaves: the bytes of requests, pictures and forms that are built to
do harm, a `Reply` to each, and complaints about it: a message that names this machine, a missing
header that protects a browser, an error that is not in the form of this API. It does not decide
which attacks are made.
"""

from __future__ import annotations

import io
import json
import random
import re
import select
import socket
import struct
import sys
import tempfile
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from hostile_images import tile
from PIL import Image

Image.MAX_IMAGE_PIXELS = None  # ours are made here
MIB = 1 << 20
SIDE, BEYOND = 8_000, 9_900  # 64 megapixels, the most that is accepted, and 98
CLOSED, HANGS = "closed", "hangs"  # outcomes without a status
BOUNDARY = "attack"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
JSON = "application/json"
MODEL = "skipqa-pocket"
DRAFTED = {"threshold": "0"}  # every draft is accepted, so that a picture costs little
LIMIT_S = 30.0  # a request that takes longer hangs
MAX_MESSAGE = 600  # characters of one clear line

Blocks = bytes | Iterable[bytes]


@dataclass(frozen=True, slots=True)
class Reply:
    outcome: int | str  # the status, or CLOSED, or HANGS
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    body: bytes = b""
    seconds: float = 0.0
    sent: int = 0  # bytes that the server took

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """Of an error; empty where there is none in the form of this API."""
        with suppress(ValueError, KeyError, TypeError):
            return str(self.json()["error"]["message"])
        return ""


@dataclass(frozen=True, slots=True)
class Target:
    host: str
    port: int
    key: str | None = None

    @property
    def authority(self) -> str:
        return f"{self.host}:{self.port}"

    def request(
        self,
        line: str,
        body: bytes = b"",
        headers: Sequence[str] = (),
        *,
        key: str | None = "",
        host: str | None = "",
    ) -> bytes:
        """`line` is `POST /v1/ask`. An empty key or host is the server's own; None: without it."""
        lines = [line if " HTTP/" in line else f"{line} HTTP/1.1"]
        lines += [] if host is None else [f"Host: {host or self.authority}"]
        key = self.key if key == "" else key
        lines += [] if key is None else [f"Authorization: Bearer {key}"]
        lines += headers
        lines += [f"Content-Length: {len(body)}"] if body else []
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def json(self, value: Any, path: str = "/v1/chat/completions") -> bytes:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        return self.request(f"POST {path}", body, [f"Content-Type: {JSON}"])

    def form(self, path: str, parts: Iterable[bytes], kind: str = FORM) -> bytes:
        return self.request(f"POST {path}", form(parts), [f"Content-Type: {kind}"])

    def ask(self, photo: bytes | None, question: str = "What is this?", **fields: str) -> bytes:
        parts = [part(name, value) for name, value in {"question": question, **fields}.items()]
        return self.form("/v1/ask", parts if photo is None else [*parts, file("photo", "p", photo)])

    def send(self, data: Blocks, limit_s: float) -> Reply:
        """The reply to bytes that are sent as they are. Blocks are sent until one comes."""
        start, sent = time.perf_counter(), 0
        method = data[:4] if isinstance(data, bytes) else b""
        with socket.create_connection((self.host, self.port), timeout=limit_s) as connection:
            with suppress(OSError):  # closed while it was sent to: there may be a reply
                for block in [data] if isinstance(data, bytes) else data:
                    if sent and select.select([connection], [], [], 0)[0]:
                        break
                    connection.sendall(block)
                    sent += len(block)
                    if time.perf_counter() - start > limit_s:
                        return Reply(HANGS, seconds=time.perf_counter() - start, sent=sent)
            outcome, headers, body = self._read(connection, "HEAD" if method == b"HEAD" else "GET")
        return Reply(outcome, headers, body, time.perf_counter() - start, sent)

    def everything(self, data: bytes, wait_s: float = 3.0) -> bytes:
        """All that comes back until the server closes or is silent."""
        found = b""
        with socket.create_connection((self.host, self.port), timeout=wait_s) as connection:
            connection.sendall(data)
            with suppress(OSError):
                while block := connection.recv(1 << 16):
                    found += block
        return found

    def _read(
        self, connection: socket.socket, method: str
    ) -> tuple[int | str, dict[str, str], bytes]:
        response = HTTPResponse(connection, method=method)
        try:
            response.begin()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return response.status, headers, response.read()
        except TimeoutError:
            return HANGS, {}, b""
        except (OSError, HTTPException):
            return CLOSED, {}, b""
        finally:
            response.close()


Attempt = bytes | Callable[[], Iterable[bytes] | Reply]


@dataclass(frozen=True)
class Attack:
    name: str
    tries: Sequence[Attempt]
    allowed: tuple[int | str, ...]
    at_once: int = 1
    limit_s: float = LIMIT_S
    check: Callable[[Reply], str] | None = None


# Forms and JSON


def part(name: str, value: str | bytes, headers: str = "") -> bytes:
    content = value if isinstance(value, bytes) else value.encode()
    return f'Content-Disposition: form-data; name="{name}"{headers}\r\n\r\n'.encode() + content


def file(name: str, filename: str, content: bytes) -> bytes:
    return part(name, content, f'; filename="{filename}"')


def form(parts: Iterable[bytes], end: bytes = b"--\r\n") -> bytes:
    mark = f"--{BOUNDARY}".encode()
    return b"".join(mark + b"\r\n" + one + b"\r\n" for one in parts) + mark + end


def chunked(blocks: Iterable[bytes]) -> Iterator[bytes]:
    for block in blocks:
        yield f"{len(block):x}\r\n".encode() + block + b"\r\n"


def chat(text: Any, picture: bytes | str | None = None, **fields: Any) -> dict[str, Any]:
    content = text
    if picture is not None:
        url = data_url(picture) if isinstance(picture, bytes) else picture
        shown = {"type": "image_url", "image_url": {"url": url}}
        content = [{"type": "text", "text": text}, shown]
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


def data_url(picture: bytes) -> str:
    return f"data:image/png;base64,{b64encode(picture).decode()}"


# Pictures


def saved(mode: str, kind: str, size: tuple[int, int] = (SIDE, SIDE), **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, kind, **options)
    return buffer.getvalue()


def small(kind: str, **options: Any) -> bytes:
    """A real picture of a few hundred bytes."""
    image = Image.linear_gradient("L").resize((48, 32)).convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def frames(kind: str, number: int, side: int = 64) -> bytes:
    images = [Image.new("RGB", (side, side), (n % 256, 0, 0)) for n in range(number)]
    buffer = io.BytesIO()
    images[0].save(buffer, kind, save_all=True, append_images=images[1:])
    return buffer.getvalue()


def scans(number: int) -> bytes:
    """A progressive JPEG of 64 megapixels whose last scan is there many times."""
    data = saved("L", "JPEG", progressive=True)
    return data[:-2] + number * data[data.rindex(b"\xff\xda") : -2] + data[-2:]


def chunks(size: int) -> bytes:
    """A PNG with a chunk of no bytes after the other."""
    data, name = small("PNG"), b"abCd"
    empty = struct.pack(">I", 0) + name + struct.pack(">I", zlib.crc32(name))
    return data[:33] + empty * (size // len(empty)) + data[33:]


def bitmap_runs(size: int) -> bytes:
    """A BMP of 64 megapixels in runs of one pixel."""
    data = b"\x01\x05" * (size // 2)
    head = struct.pack("<2sIHHI", b"BM", 0, 0, 0, 14 + 40 + 1_024)
    head += struct.pack("<IiiHHIIiiII", 40, SIDE, SIDE, 1, 8, 1, len(data), 0, 0, 256, 0)
    return head + bytes(1_024) + data


def screen() -> bytes:
    """A GIF that claims 65,535 x 65,535 pixels."""
    data = bytearray(small("GIF"))
    data[6:10] = b"\xff\xff\xff\xff"
    return bytes(data)


HTML = b"<html><script>alert(1)</script></html>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
LARGE: dict[str, Callable[[], bytes]] = {  # 64 megapixels
    "PNG, RGB": lambda: saved("RGB", "PNG"),
    "PNG, RGBA": lambda: saved("RGBA", "PNG"),
    "PNG, 16-bit grey": lambda: saved("I;16", "PNG"),
    "JPEG, CMYK": lambda: saved("CMYK", "JPEG"),
    "JPEG, progressive": lambda: saved("RGB", "JPEG", progressive=True),
    "TIFF, float grey": lambda: saved("F", "TIFF", compression="tiff_deflate"),
    "WEBP": lambda: saved("RGB", "WEBP"),
    "AVIF": lambda: saved("RGB", "AVIF", speed=10),
    "GIF": lambda: saved("P", "GIF"),
}
SLOW: dict[str, Callable[[], bytes]] = {  # much work for each byte
    "PNG, 1 x 64,000,000": lambda: saved("1", "PNG", (1, SIDE * SIDE)),
    "PNG, 64,000,000 x 1": lambda: saved("1", "PNG", (SIDE * SIDE, 1)),
    "PNG of 2.7 million chunks": lambda: chunks(31 * MIB),
    "PGM, up to 254": lambda: b"P5 5600 5600 254\n" + bytes(5_600 * 5_600),
    "PPM, in digits": lambda: b"P3 2300 2300 255\n" + b"0 " * (3 * 2_300 * 2_300),
    "PPM of comments": lambda: b"P3 2300 2300 255\n" + b"#\n0 " * (31 * MIB // 4),
    "BMP, in runs": lambda: bitmap_runs(31 * MIB),
    "JPEG of 97 scans": lambda: scans(90),
    "TIFF of 65,535 tags": lambda: (
        b"II*\0"
        + struct.pack("<IH", 8, 65_535)
        + b"".join(struct.pack("<HHII", tag, 3, 1, 1) for tag in range(65_535))
        + bytes(4)
    ),
}
ODD: dict[str, Callable[[], bytes]] = {  # an answer, or one line about what is wrong
    "1 x 1 PNG": lambda: saved("RGB", "PNG", (1, 1)),
    "1 x 1 GIF": lambda: saved("P", "GIF", (1, 1)),
    "1 x 1, one bit": lambda: saved("1", "PNG", (1, 1)),
    "1 x 5,000": lambda: saved("RGB", "PNG", (1, 5_000)),
    "5,000 x 1": lambda: saved("RGB", "PNG", (5_000, 1)),
    "a transparent pixel": lambda: saved("RGBA", "PNG", (1, 1)),
    "CMYK": lambda: saved("CMYK", "JPEG", (48, 48)),
    "16 bits": lambda: saved("I;16", "PNG", (48, 48)),
    "Lab": lambda: saved("LAB", "TIFF", (48, 48)),
    "NaN": lambda: saved("F", "TIFF", (48, 48)).replace(bytes(64), b"\0\0\xc0\x7f" * 16),
    "GIF of 2,000 frames": lambda: frames("GIF", 2_000),
    "WEBP of 100 frames": lambda: frames("WEBP", 100),
    "PNG of 50 frames": lambda: frames("PNG", 50),
    "a picture and a page": lambda: small("PNG") + HTML,
    "a picture and an archive": lambda: small("JPEG") + b"PK\x03\x04" + bytes(60),
    "a comment with a page": lambda: small("GIF", comment=HTML),
    "cut PNG": lambda: small("PNG")[:-40],
    "cut JPEG": lambda: small("JPEG")[:-200],
    "cut WEBP": lambda: small("WEBP")[:-20],
    "only a head": lambda: small("PNG")[:16],
    "a head and noise": lambda: small("PNG")[:33] + random.Random(1).randbytes(5_000),
    "no bytes": lambda: b"",
    "one byte": lambda: b"\0",
    "a page": lambda: HTML,
    "SVG": lambda: SVG,
    "PDF": lambda: b"%PDF-1.7\n",
    "a program": lambda: b"\x7fELF" + bytes(100),
    "PostScript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "a GIF of 4 gigapixels": screen,
    "a PPM of 10^18 pixels": lambda: b"P6 1000000000 1000000000 255\n\0",
    "a PPM below zero": lambda: b"P6 -5 -5 255\n" + bytes(75),
    "TIFF, 16 x 16 in a tile of 900 MP": tile,
    "JPEG of 507 scans": lambda: scans(500),
    "PNG, 98 MP": lambda: saved("RGB", "PNG", (BEYOND, BEYOND)),
    "text of 60 MB in a chunk": lambda: text_bomb(),
}


def text_bomb() -> bytes:
    data, content = small("PNG"), b"zTXt" + b"a\0\0" + zlib.compress(bytes(60_000_000))
    chunk = struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))
    return data[:33] + chunk + data[33:]


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Some bytes changed, a piece cut out or doubled."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16, 64))):
        place = rng.randrange(len(changed))
        match rng.randrange(5):
            case 0:
                changed[place] = rng.randrange(256)
            case 1:
                changed[place] ^= 1 << rng.randrange(8)
            case 2:
                changed[place : place + 4] = rng.choice((bytes(4), b"\xff" * 4, b"\x7f\xff"))
            case 3 if len(changed) > 64:
                del changed[place : place + rng.randrange(1, 32)]
            case _:
                piece = changed[place : place + rng.randrange(1, 32)]
                changed[place:place] = piece
    return bytes(changed)


# What is wrong with a reply

PARSER_SAYS = b"Invalid HTTP request received."  # before anything of ours has run
ROOT = Path(__file__).resolve().parents[1]
PLACES = (str(ROOT), str(Path.home()), sys.prefix, tempfile.gettempdir(), "site-packages")
NEVER = {
    "a traceback": re.compile(r'Traceback|File "'),
    "an address in memory": re.compile(r"\b0x[0-9a-f]{6,}"),
    "an address of a network": re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b|\[[0-9a-f:]*::[0-9a-f:]*\]"),
    "what was sent": re.compile(r"[A-Za-z0-9+/=]{100,}"),
}
PROTECTED = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def complaints(reply: Reply) -> Iterator[str]:
    """Of any reply to any request."""
    if isinstance(reply.outcome, str) or reply.body == PARSER_SAYS:
        return
    for name, value in PROTECTED.items():
        if reply.headers.get(name) != value:
            yield f"no {name}: {value}"
    if "default-src 'none'" not in reply.headers.get("content-security-policy", ""):
        yield "no content security policy"
    if "access-control-allow-origin" in reply.headers:
        yield "other sites may read it"
    text = reply.body.decode("utf-8", "replace")
    if any(place in text for place in PLACES):
        yield f"names a place of this machine: {text[:200]}"
    if reply.outcome < 400 or reply.headers.get("content-type", "").startswith("text/html"):
        return
    if not reply.body:  # as to a HEAD
        return
    yield from _of_an_error(reply)


def _of_an_error(reply: Reply) -> Iterator[str]:
    if reply.outcome == 503 and b'"status"' in reply.body:
        return  # of /health
    try:
        error = reply.json()["error"]
        whole = set(error) == {"message", "type", "param", "code"}
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        yield f"an error in another form: {reply.body[:120]!r}"
    message = reply.message
    if len(message) > MAX_MESSAGE or "\n" in message:
        yield f"a message of {len(message):,} characters, not one line: {message[:80]}"
    for what, pattern in NEVER.items():
        if pattern.search(message):
            yield f"a message with {what}: {message[:200]}"
