"""What a source of knowledge on demand is, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from skipqa.types import Origin, Passage

Answers = Mapping[str, "Sequence[Told]"]  # by name; a name that is not there is unknown there too


class Told(NamedTuple):
    """A passage that a source told, and where it is from."""

    passage: Passage
    origin: Origin


class SourceFailed(Exception):
    """A source was out of reach, refused, or replied with something else. One line, no secrets."""


class KnowledgeSource(Protocol):
    @property
    def name(self) -> str:
        """Shown to people, and the `source` of its passages. Holds no key."""

    @property
    def identity(self) -> str:
        """All that its answers depend on: the cache keeps them under it."""

    def ask(self, names: Sequence[str]) -> Answers:
        """What it knows of these names. Called in threads. May take as long as it has to: who asks
        goes on without it."""


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
