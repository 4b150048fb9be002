"""Run the application: uvicorn, its signals, its log.

Enters: settings, an address. Leaves: when the server has stopped. SIGTERM and Ctrl-C let the
questions that were taken on finish; connections that come later are refused.
"""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from skipqa.errors import UserError
from skipqa.serve.app import create_app
from skipqa.serve.protocol import IDLE_S, BoundedProtocol
from skipqa.serve.settings import ServeSettings

log = logging.getLogger("skipqa.serve")


class Server(uvicorn.Server):
    """Says where it listens once it does."""

    def __init__(self, config: uvicorn.Config, settings: ServeSettings) -> None:
        super().__init__(config)
        self.settings = settings

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
            host, port = one.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            key = f"?key={self.settings.keys[0]}" if self.settings.keys else ""
            print(f"skipqa listens at http://{shown}:{port}/{key}", flush=True)


def run(settings: ServeSettings, host: str, port: int, grace: int, *, by_ray: bool) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if by_ray:
        from skipqa.serve.ray import run as run_by_ray

        run_by_ray(settings, host, port, grace)
        return
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
    server = Server(config, settings)
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
