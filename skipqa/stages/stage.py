"""What a stage is, and what one is built from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from skipqa.backbones.backbone import Backbone
from skipqa.components import TRAINING_FREE, Components
from skipqa.config import Config
from skipqa.errors import UserError
from skipqa.knowledge import Library
from skipqa.knowledge.on_demand import Sources
from skipqa.state import State
from skipqa.trace import StageRecord


class Stage(Protocol):
    def __call__(self, state: State, record: StageRecord) -> State:
        """The state with this stage's result; counts, FLOPs and reason go into the record."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What all stages of a pipeline are built from."""

    backbone: Backbone
    library: Library
    config: Config
    components: Components = TRAINING_FREE
    sources: Sources = field(default_factory=Sources)  # knowledge beyond the library, if any


Build = Callable[[Parts], Stage]


def trained_concepts(backbone: Backbone) -> int:
    """Those that an index has photos of come last, and only the rules use them."""
    return len(backbone.concepts) - backbone.concepts.from_photos


def check_concepts(component: str, has: int, backbone: Backbone) -> None:
    if has != (needed := trained_concepts(backbone)):
        raise UserError(
            f"{component}.safetensors was trained for {has:,} concepts, "
            f"this backbone has {needed:,}"
        )
