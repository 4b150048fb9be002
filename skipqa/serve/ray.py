"""The same application as Ray Serve replicas: on one machine or on all of a cluster.

Enters: settings, an address. Leaves: when it is told to stop. Every replica is the whole
application with one worker process over the same indexes; Ray's proxy takes the requests, spreads
them, and replaces replicas that die. Documents cannot be uploaded: they would be on one machine.
`RAY_ADDRESS` names a running cluster; without it Ray is started here.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import replace

from skipqa.cluster import connect
from skipqa.errors import MissingExtra
from skipqa.serve.app import create_app
from skipqa.serve.guard import Guard
from skipqa.serve.run import Tell
from skipqa.serve.settings import ServeSettings

NAME = "skipqa"
WHAT = "skipqa serve --ray"


def run(settings: ServeSettings, host: str, port: int, grace: int, tell: Tell) -> None:
    deploy(settings, host, port, grace)
    tell(host, port)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
    from ray import serve

    serve.shutdown()  # replicas finish what they have


def deploy(settings: ServeSettings, host: str, port: int, grace: int) -> None:
    """Returns when every replica answers."""
    connect(WHAT)
    try:
        from ray import serve
    except ImportError as error:  # Ray without this part of it
        raise MissingExtra(WHAT, "ray") from error
    engine = settings.engine
    serve.start(
        http_options={"host": host, "port": port, "request_timeout_s": engine.timeout_s + grace}
    )
    one = replace(settings, engine=replace(engine, workers=1), store=None, ready_first=True)
    replica = serve.deployment(
        serve.ingress(_builder(one))(),
        name=NAME,
        num_replicas=engine.workers,
        max_ongoing_requests=engine.max_questions,
        graceful_shutdown_timeout_s=grace,
        ray_actor_options={"num_cpus": engine.threads},
    )
    serve.run(replica.bind(), name=NAME, route_prefix="/")


def _builder(settings: ServeSettings) -> Callable[[], Guard]:
    """What a replica calls to have its application."""

    def build() -> Guard:
        return create_app(settings)

    return build
