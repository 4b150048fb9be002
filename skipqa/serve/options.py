"""How a question is to be answered, as the HTTP process and its workers tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SYSTEMS = ("skip", "dense", "no-retrieval")


@dataclass(frozen=True, slots=True)
class Options:
    """How a question is to be answered; None leaves it to the pipeline."""

    indexes: tuple[str, ...] = ()  # folders or `default`; none: those the server was started with
    system: str = "skip"
    fast_path: bool = True
    tokens: int | None = None  # V'
    passages: int | None = None  # K'
    threshold: float | None = None  # of the fast path
    citations: bool = True

    @staticmethod
    def read(header: Mapping[str, Any]) -> Options:
        return Options(**{**header, "indexes": tuple(header.get("indexes", ()))})
