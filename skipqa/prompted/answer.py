"""What prompted mode gives back: the answer, how it came about and what it cost.

Values only, all frozen. It knows neither prompts nor endpoints.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from skipqa.types import Box, Level

Route = Literal["draft", "full", "caption"]
WHOLE_IMAGE: Box = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False  # the endpoint did not say; of a total: for some of the calls

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.estimated or other.estimated,
        )


@dataclass(frozen=True, slots=True)
class Call:
    """One completion: what for, its tokens, and the seconds with all attempts and pauses."""

    purpose: str
    usage: Usage
    seconds: float
    attempts: int
    finish: str  # as the endpoint says it; "length": cut off


@dataclass(frozen=True, slots=True)
class NamedRegion:
    name: str
    box: Box
    salience: float


@dataclass(frozen=True, slots=True)
class JudgedPassage:
    id: str
    title: str
    text: str  # what was read of it
    source: str
    index: str
    query: int  # which query found it
    relative: float  # retrieval score, 1 for the best
    score: float | None  # relevance as judged; None: no judgement could be read
    kept: bool
    cited: bool = False  # the answer names it


@dataclass(frozen=True, slots=True)
class PromptedAnswer:
    question: str
    text: str
    route: Route
    difficulty: Level | None = None  # None where the method asks for none
    draft: str = ""
    caption: str = ""  # of the baselines
    regions: tuple[NamedRegion, ...] = ()
    queries: tuple[str, ...] = ()  # one per region
    passages: tuple[JudgedPassage, ...] = ()  # kept ones first
    calls: tuple[Call, ...] = ()
    fallbacks: tuple[str, ...] = ()  # what could not be read, and what stands in for it
    seconds: float = 0.0
    error: str = ""  # in a batch: why there is no answer

    @property
    def evidence(self) -> tuple[JudgedPassage, ...]:
        """The passages that the answer names as its grounds."""
        return tuple(passage for passage in self.passages if passage.cited)

    @property
    def usage(self) -> Usage:
        return sum((call.usage for call in self.calls), Usage())

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**asdict(self), "usage": as_dict(self.usage)}


def as_dict(usage: Usage) -> dict[str, Any]:
    return {**asdict(usage), "total_tokens": usage.total_tokens}
