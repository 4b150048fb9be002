"""What a stage of training is: a name, its default settings, and a run from inputs to a folder.

Enters: what the user gave (`Inputs`). Leaves: the base class of what `stages.py` lists, and
the checks that stages share. It knows no stage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skipqa.components import BASED_ON
from skipqa.errors import UserError
from skipqa.knowledge.library import Uri
from skipqa.training.run import Run

Metrics = dict[str, Any]
POCKET = "pocket"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where the data lies, and what a stage begins with."""

    data: Path | None = None  # images and questions about them: all stages but "splade"
    pocket_kb: Path | None = None
    limit: int | None = None  # rows of each file, for a trial
    components: Path | None = None  # what later stages begin with, else the bundled checkpoint
    index: tuple[Uri, ...] = ()  # one has Pocket-KB's passages; none: the default library
    records: Path | None = None  # of the pathway stages, else next to the stage's folder
    preset: str = POCKET  # whose pipeline is trained
    settings: Path | None = None  # TOML with a table of settings for each stage

    def require_data(self, stage: str) -> Path:
        if self.data is None:
            raise UserError(f"{stage} learns from photos: give --data")
        return self.data

    def require_pocket_kb(self, stage: str) -> Path:
        if self.pocket_kb is None:
            raise UserError(
                f"{stage} learns from passages that are known to answer: "
                "give Pocket-KB by --pocket-kb"
            )
        return self.pocket_kb


@dataclass(frozen=True, slots=True)
class TrainingStage(ABC):
    """One entry of `stages.STAGES`."""

    name: str  # as the command line has it, and as "all" names its folder
    settings: Any  # the defaults, a frozen dataclass; `--set` changes them
    # Why it trains nothing for presets with other networks; empty: it knows the interface alone
    needs_pocket: str = field(default="", kw_only=True)
    # Whether the result depends on the decoder: a preset based on another's encoders has its own
    of_decoder: bool = field(default=False, kw_only=True)

    @abstractmethod
    def run(self, inputs: Inputs, settings: Any, run: Run) -> Metrics:
        """Check the inputs, claim the folder with everything the result depends on, train what is
        not finished there. The folder is then a folder of components: what the stage began with,
        and what it trained where that ships. The metrics of all parts come back."""

    def refuses(self, preset: str) -> str:
        """Why it cannot train for that preset; empty where it can."""
        if preset == POCKET:
            return ""
        if preset in BASED_ON:
            return "" if self.of_decoder else f"it uses what is trained for {BASED_ON[preset]}"
        return self.needs_pocket

    def part_of_all(self, preset: str) -> bool:
        """Whether "all" trains it for that preset."""
        return not self.refuses(preset)

    @property
    def makes_backbone(self) -> bool:
        """In "all", given components stand in for the stages that make the backbone."""
        return False

    def check(self, metrics: Mapping[str, Any]) -> None:  # noqa: B027
        """Raise where the stages that follow should not build on this result."""
