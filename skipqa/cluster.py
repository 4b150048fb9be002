"""A connection to Ray: to the cluster that the user names, or to a Ray started for this process.

Enters: an address, or nothing. Leaves: the module `ray`, connected, or one line that says what is
wrong. An address is never guessed. Ray's own guess is the file that the last `ray start` of this
machine left behind; where that cluster is dead, Ray tries it for a quarter of an hour and says
nothing. It knows nothing of what the cluster is for.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from skipqa.errors import MissingExtra, UserError

VARIABLE = "RAY_ADDRESS"
CLIENT = "ray://"
HEAD_PORT = 6379  # of `ray start --head`
TIMEOUT_S = 5
LONG = 300  # characters: a message with a traceback in it
# Of skipqa, and of the machines' own environment otherwise: workers of a cluster have the
# environment that the cluster was started in. Those of folders are the same on every machine.
FOLDERS = ("SKIPQA_HOME", "SKIPQA_WEIGHTS")
VALUES = ("SKIPQA_DEVICE",)


def named(address: str = "") -> str:
    """The address that the user gave, by an option or in the environment; empty if none."""
    return address or os.environ.get(VARIABLE, "")


def connect(what: str, address: str = "", **local: Any) -> Any:
    """The module `ray`, connected for `what`. `local` are arguments of `ray.init` for a Ray that is
    started here. A process that is connected stays so."""
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        return sys.modules["ray"]
    if address := named(address):
        check(address)
        # An attempt takes up to 40 s, and Ray makes twenty. It reads this when imported.
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "3")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingExtra(what, "ray") from error
    try:
        if address:
            ray.init(address=address, runtime_env={"env_vars": environment()}, **_spoken(local))
        else:
            ray.init(address="local", include_dashboard=False, **local)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        where = (
            f"the Ray cluster at {address} cannot be used" if address else "Ray cannot be started"
        )
        raise UserError(f"{where}: {_reason(error)}") from error
    return ray


def check(address: str) -> None:
    """Refuse at once what Ray would try for minutes."""
    host, port = parse(address)
    try:
        socket.create_connection((host, port), TIMEOUT_S).close()
    except OSError as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({error.strerror or error}): `ray start --head` "
            f"starts one and tells its address, the port is {HEAD_PORT} unless another was given"
        ) from None


def parse(address: str) -> tuple[str, int]:
    """`10.0.0.5:6379` or `ray://10.0.0.5:10001` as host and port."""
    host, colon, port = address.removeprefix(CLIENT).rpartition(":")
    if not colon or not host.strip("[]") or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UserError(
            f"{address!r} is not the address of a Ray cluster: give HOST:PORT, such as "
            f"10.0.0.5:{HEAD_PORT}"
        )
    return host.strip("[]"), int(port)


def environment() -> dict[str, str]:
    """What workers elsewhere have to know of this process's environment."""
    folders = {name: os.path.abspath(os.environ[name]) for name in FOLDERS if os.environ.get(name)}
    return folders | {name: os.environ[name] for name in VALUES if name in os.environ}


def _spoken(local: dict[str, Any]) -> dict[str, Any]:
    """What concerns the connection and not the cluster, which has its cores and memory already."""
    return {name: local[name] for name in ("log_to_driver", "logging_level") if name in local}


def _reason(error: BaseException) -> str:
    """Of the first error of a chain, in one line."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    said = str(error).strip() or type(error).__name__
    if "AuthToken" in said or type(error).__name__ == "AuthenticationError":
        # `ray start` asks for one if this machine has one, which any local Ray has made; Ray sends
        # it to no address that is given, unless it is told to.
        return (
            "it asks for its token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH if the token "
            "is not where Ray keeps it"
        )
    return " ".join(said.split()) if len(said) < LONG else said.splitlines()[-1].strip()
