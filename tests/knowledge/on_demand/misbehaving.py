"""An HTTP server on loopback that replies as it is told, also badly."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Reply:
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    promised: int | None = None  # bytes, of which only `body` comes
    drip: bool = False  # a byte now and then, without end
    held: threading.Event | None = None  # nothing is sent before it is set
    asked: list[str] = field(default_factory=list)  # the paths of all requests


@contextmanager
def misbehaving(reply: Reply) -> Iterator[str]:
    """Its address."""
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply.asked.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if reply.held is not None:
                reply.held.wait(10)
            with suppress(OSError):  # who asked may have gone
                self._send()

        do_POST = do_GET

        def _send(self) -> None:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if not reply.drip:
                self.send_header("Content-Length", str(reply.promised or len(reply.body)))
            self.end_headers()
            while reply.drip and not stopped.wait(0.01):
                self.wfile.write(b" ")
            self.wfile.write(reply.body)

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/sparql"
        finally:
            stopped.set()
            server.shutdown()
            thread.join()
