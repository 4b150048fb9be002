"""All that is known of one question, and how a stage adds to it.

A stage reads the fields that earlier stages filled and returns the state with its own result
added. A field that is read too early says which stage has not run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, TypeVar, overload

from PIL import Image

from skipqa.types import (
    Budget,
    Consulted,
    Decoded,
    Draft,
    Fused,
    Hop,
    KeptTokens,
    Question,
    ReadAs,
    ReadText,
    Region,
    Retrieved,
    Verified,
    VisualTokens,
)

ImageSource = Image.Image | Path | str | IO[bytes]
T = TypeVar("T")


class NotRun(RuntimeError):
    """A field was read before the stage that fills it."""


class FilledBy(Generic[T]):
    """A field of `State` that one stage fills: reading it gives a T, never None."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, state: None, owner: type) -> T | None: ...
    @overload
    def __get__(self, state: State, owner: type) -> T: ...
    def __get__(self, state: State | None, owner: type) -> T | None:
        if state is None:
            return None  # the default: not filled yet
        value: T | None = vars(state)[self.name]
        if value is None:
            raise NotRun(f"{self.stage} has not run")
        return value

    def __set__(self, state: State, value: T | None) -> None:
        vars(state)[self.name] = value


@dataclass(frozen=True, eq=False, repr=False)
class State:
    source: ImageSource | None  # None: a question without an image
    text: str  # the question as it was asked
    fast_path: bool = False  # whether it may be answered without being looked up
    image: FilledBy[Image.Image] = FilledBy("encode")
    question: FilledBy[Question] = FilledBy("encode")
    low_res: FilledBy[VisualTokens] = FilledBy("encode")  # the whole image, small
    draft: FilledBy[Draft] = FilledBy("draft")
    budget: FilledBy[Budget] = FilledBy("budget")
    tokens: FilledBy[VisualTokens] = FilledBy("look")  # at high resolution, if the budget has it
    kept: FilledBy[KeptTokens] = FilledBy("prune")  # `kept.tokens` also has what zoom has seen
    regions: FilledBy[tuple[Region, ...]] = FilledBy("regions")
    read_text: FilledBy[ReadText] = FilledBy("read_text")
    retrieved: FilledBy[Retrieved] = FilledBy("retrieve")  # also what consult was told
    consulted: FilledBy[Consulted] = FilledBy("consult")
    verified: FilledBy[Verified] = FilledBy("verify")
    fused: FilledBy[Fused] = FilledBy("fuse")
    hops: FilledBy[tuple[Hop, ...]] = FilledBy("hop")  # further rounds, where there were any
    prompt: FilledBy[str] = FilledBy("decode")
    answer: FilledBy[Decoded] = FilledBy("decode")

    @property
    def read_as(self) -> ReadAs | None:
        """How passages are read, where the budget says so: what it does not look up, not at all."""
        if "budget" not in self:
            return None
        return self.budget.read_as or (None if self.budget.passages else "none")

    @property
    def text_read(self) -> ReadText:
        """Nothing where no stage has read text."""
        return self.read_text if "read_text" in self else ReadText()

    def add(self, **results: Any) -> State:
        """A new state with these fields filled, or replaced."""
        return State(**{**vars(self), **results})

    def __contains__(self, field: str) -> bool:
        """Whether the field is filled."""
        return vars(self)[field] is not None

    def __repr__(self) -> str:
        filled = [name for name in vars(self) if name != "fast_path" and name in self]
        return f"State({self.text!r}: {', '.join(filled)})"
