"""uvicorn's HTTP protocol with limits on what comes before a request is complete.

Enters: bytes of a connection. Leaves: requests, as uvicorn has them; heads that are too long are
refused, and a connection that sends no request is closed. The guard bounds what follows the head.
httptools parses, as h11 accepts line ends and pairs of lengths that other servers read differently.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

IDLE_S = 15.0  # without a whole head
LINGER_S = 5.0  # for the rest of a body that was refused
MAX_HEAD = 1 << 16  # bytes of a request that are not its body
MAX_HEADERS = 100
FRAMING = 16  # bytes around a chunk that are not counted


class BoundedProtocol(HttpToolsProtocol):
    _head = 0  # bytes that were no body, since the last request was complete
    _awaiting = True  # the end of a head
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._close_after(IDLE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._keep_open()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._head > MAX_HEAD:
            self.send_400_response("Invalid HTTP request received.")
        elif self._awaiting and self._timer is None and self._answered:
            self._close_after(IDLE_S)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")  # the parser makes it a 400
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._awaiting, self._head = False, 0
        self._keep_open()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head = max(0, self._head - len(body) - FRAMING)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._awaiting, self._head = True, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._awaiting:  # answered before its body was there
            self._close_after(LINGER_S)

    @property
    def _answered(self) -> bool:
        """Whoever waits for an answer need not send; afterwards uvicorn's own timer runs."""
        return self.cycle is None or self.cycle.response_complete

    def _close_after(self, seconds: float) -> None:
        self._keep_open()
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _keep_open(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
