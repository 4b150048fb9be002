"""How a server is set up, in one value; every limit has its place here."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from skipqa.serve.engine import EngineSettings

MIB = 1 << 20
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    engine: EngineSettings = field(default_factory=EngineSettings)
    model: str = "skipqa-pocket"  # its name for clients
    indexes: tuple[str, ...] = ()  # that questions may name besides `default` and the uploaded ones
    keys: tuple[str, ...] = ()  # empty: everyone who reaches the port may ask
    hosts: tuple[str, ...] = LOOPBACK  # that a request may name; "*" for any
    allow_urls: bool = False  # fetch images that clients name by URL
    citations: bool = True  # in the text of an answer
    ready_first: bool = False  # load the models before the first request is taken
    store: Path | None = None  # for the indexes that people upload; None: they may not
    quota_bytes: int = 2_048 * MIB  # of the store
    max_body: int = 32 * MIB
    max_upload: int = 256 * MIB  # of documents, which go to the disk
    max_in_flight: int = 256 * MIB  # bodies that are being read or answered
    body_timeout_s: float = 60.0  # to send a body


def new_key() -> str:
    """Some clients send no key that does not begin like OpenAI's."""
    return f"sk-{secrets.token_urlsafe(24)}"
