"""One bounded HTTP request to an address that the operator configured.

Enters: an address, and a form to post if there is one. Leaves: the body of a reply with status 200,
or `SourceFailed` with one line that holds neither query nor credentials. A reply is bounded in size
and in time as a whole; redirects are not followed, so that what is asked goes to this host alone.
It knows nothing of what is asked. Images from addresses that clients send are another matter
(`serve/fetch.py`).
"""

from __future__ import annotations

import json
import ssl
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from skipqa import __version__
from skipqa.errors import UserError
from skipqa.knowledge.on_demand.source import SourceFailed

CONNECTIONS = {"http": HTTPConnection, "https": HTTPSConnection}
PIECE = 1 << 16  # bytes read at a time
MAX_BYTES = 4 << 20  # of a reply
MAX_SECONDS = 10.0  # for connecting, sending and reading
USER_AGENT = f"skipqa/{__version__} (knowledge on demand)"


def check_address(url: str) -> SplitResult:
    """Refuse what is no address of http or https."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in CONNECTIONS or not parts.hostname or port == 0:
        raise UserError(f"{url!r} is no address: give one that begins with http:// or https://")
    if parts.username or parts.password:
        raise UserError("an address of a source holds no user name and no password")
    return parts


def fetch_json(url: str, form: dict[str, str] | None = None, accept: str = "") -> Any:
    """The JSON of a reply to GET, or to POST of a form."""
    body = fetch(url, form, accept or "application/json")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise SourceFailed(f"{_place(url)} replied with something other than JSON") from None


def fetch(url: str, form: dict[str, str] | None, accept: str) -> bytes:
    parts, end = check_address(url), time.monotonic() + MAX_SECONDS
    headers = {"Accept": accept, "User-Agent": USER_AGENT, "Connection": "close"}
    body = None
    if form is not None:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        body = urlencode(form).encode()
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = CONNECTIONS[parts.scheme](str(parts.hostname), parts.port, timeout=MAX_SECONDS)
    try:
        connection.request("GET" if body is None else "POST", target, body, headers)
        status, reply = _read(connection, end)
    except TimeoutError:
        raise SourceFailed(f"{_place(url)} took longer than {MAX_SECONDS:g} s") from None
    except ssl.SSLError:
        raise SourceFailed(f"{_place(url)} has no certificate that can be trusted") from None
    except (OSError, HTTPException, UnicodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise SourceFailed(f"{_place(url)} cannot be reached: {reason}") from None
    finally:
        connection.close()
    if status != 200:
        raise SourceFailed(f"{_place(url)} replied with status {status}")
    return reply


def _read(connection: HTTPConnection, end: float) -> tuple[int, bytes]:
    """All before `end`: a server that sends a byte now and then does not hold the thread."""
    sock = connection.sock  # the connection lets go of it, the response does not
    sock.settimeout(_left(end))
    data = bytearray()
    with connection.getresponse() as response:
        while piece := response.read1(PIECE):
            data += piece
            if len(data) > MAX_BYTES:
                raise HTTPException("a reply without end")
            sock.settimeout(_left(end))
    return response.status, bytes(data)


def _left(end: float) -> float:
    if (left := end - time.monotonic()) <= 0:
        raise TimeoutError
    return left


def _place(url: str) -> str:
    """The host: the rest of an address may hold a key."""
    return urlsplit(url).netloc
