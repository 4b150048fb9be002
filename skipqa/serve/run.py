"""Run the application: uvicorn, its signals, its log.

Enters: settings, an address. Leaves: when the server has stopped. SIGTERM and Ctrl-C let the
questions that were taken on finish; connections that come later are refused.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from skipqa.errors import UserError
from skipqa.serve.app import create_app
from skipqa.serve.protocol import IDLE_S, BoundedProtocol
from skipqa.serve.settings import ServeSettings

Tell = Callable[[str, int], None]  # with the host and the port, once it listens
log = logging.getLogger("skipqa.serve")


class Server(uvicorn.Server):
    """Says where it listens once it does."""

    def __init__(self, config: uvicorn.Config, tell: Callable[[str, int], None]) -> None:
        super().__init__(config)
        self.tell = tell

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Being stopped is success: uvicorn's own would raise the signal again when all is done."""
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in () if self.should_exit else sockets or ():
            self.tell(*one.getsockname()[:2])


def tell_address(settings: ServeSettings, as_json: bool, host: str, port: int) -> None:
    shown, key = f"[{host}]" if ":" in host else host, next(iter(settings.keys), None)
    address = f"http://{shown}:{port}/"
    if as_json:
        print(json.dumps({"url": address, "key": key, "model": settings.model}), flush=True)
    else:
        page = address if key is None else f"{address}?key={key}"
        print(f"skipqa listens at {page}", flush=True)


def run(settings: ServeSettings, host: str, port: int, grace: int, tell: Tell) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    reasons: list[str] = []

    def unable(reason: str) -> None:
        reasons.append(reason)
        server.should_exit = True

    app = create_app(settings, unable)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # the guard writes its own, without queries
        server_header=False,
        date_header=True,
        proxy_headers=False,
        http=BoundedProtocol,
        timeout_keep_alive=round(IDLE_S),
        timeout_graceful_shutdown=grace,
        ws="none",
    )
    server = Server(config, tell)
    server.run(sockets=[_listening(host, port)])
    if reasons:
        raise UserError(reasons[0])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
    except OSError as error:
        raise UserError(f"cannot listen at {host}:{port}: {error.strerror}") from None
    return listening
