"""The folder of a run: its config, what is finished, what was measured.

Leaves in it `config.json` (a run with another config is refused), `metrics.json` (a part named
there is finished and has its files), `metrics.jsonl` during training, the same for TensorBoard
where that is installed, and in `state/`, until the end, what a killed run resumes from. Of several
processes the first one writes. It knows nothing of networks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skipqa.files import claim, read_json, write_json
from skipqa.training.processes import ALONE, Processes

Progress = Callable[[str, int, int, float | None], None]  # (what, done, of how many, loss)
Counted = Callable[[int, int], None]  # (done, of how many)


class Board:
    """TensorBoard's writers, one per folder; none where it is not installed."""

    def __init__(self) -> None:
        self._writers: dict[Path, Any] = {}

    def add(self, folder: Path, scalars: Mapping[str, float], step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        if folder not in self._writers:
            self._writers[folder] = SummaryWriter(str(folder / "tensorboard"))
        for name, value in scalars.items():
            self._writers[folder].add_scalar(name, value, step)
        self._writers[folder].flush()


@dataclass(frozen=True, slots=True)
class Run:
    folder: Path
    seed: int = 2026
    progress: Progress = lambda what, done, total, loss: None
    say: Callable[[str], None] = lambda line: None
    save_every_s: float = 30.0
    board: Board = field(default_factory=Board)
    processes: Processes = ALONE  # that train together
    accumulate: int = 1  # batches per step, over all processes

    def claim(self, config: Mapping[str, Any]) -> None:
        """Write down what is run here, or check that it is the same."""
        more = {} if self.accumulate == 1 else {"accumulate": self.accumulate}
        with self.first_alone():
            claim(self.folder / "config.json", {**config, **more})

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """The block in the first process, then in the others, which find what it wrote."""
        if self.processes.rank > 0:
            self.processes.meet()
        yield
        if self.processes.rank == 0:
            self.processes.meet()

    def metrics(self) -> dict[str, Any]:
        """Of every part that is finished."""
        path = self.folder / "metrics.json"
        found: dict[str, Any] = read_json(path) if path.exists() else {}
        return found

    def finish(self, part: str, metrics: Mapping[str, Any]) -> None:
        """Call when the part's files are in place: from then on it is not trained again."""
        self.processes.meet()  # nobody is still to ask whether it is finished
        if self.processes.rank == 0:
            write_json(self.folder / "metrics.json", self.metrics() | {part: metrics}, indent=1)
            self.state(part).unlink(missing_ok=True)
            shutil.rmtree(self.states(part), ignore_errors=True)
        self.processes.meet()

    def state(self, name: str) -> Path:
        """Of an optimisation: a part's name, or `part/more` where a part has several."""
        return self.folder / "state" / f"{name}.pt"

    def states(self, part: str) -> Path:
        """The folder of what is kept of a part until it is finished, besides its own state."""
        return self.folder / "state" / part

    def forget_states(self) -> None:
        self.processes.meet()
        if self.processes.rank == 0:
            shutil.rmtree(self.folder / "state", ignore_errors=True)

    def counted(self, what: str) -> Counted:
        """Progress of work that has no loss."""
        return lambda done, total: self.progress(what, done, total, None)

    def record(self, part: str, step: int, **values: float) -> None:
        """Steps that a kill undid come twice; the later line counts."""
        if self.processes.rank > 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"part": part, "step": step, **values}) + "\n")
        self.board.add(self.folder, {f"{part}/{name}": v for name, v in values.items()}, step)
