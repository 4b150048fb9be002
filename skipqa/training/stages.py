"""The stages of training by name, and what is common to them: the one way in.

Enters: a stage's name, the data, a folder, changed settings. Leaves: the folder, and the metrics
of its parts. What calls this draws the progress; it runs where only torch, numpy, Pillow,
tokenizers and safetensors are installed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from skipqa.config import override, read_settings
from skipqa.errors import UserError
from skipqa.training import mixture, stage1
from skipqa.training.mixture import Mixture
from skipqa.training.run import Progress, Run


@dataclass(frozen=True, slots=True)
class Stage:
    settings: Any  # the defaults, a frozen dataclass
    run: Callable[[Mixture, Any, Run, torch.device], dict[str, Any]]
    memory_bytes: Callable[[Mixture, Any], int]
    # At the default settings, for each question: measured on an H200, reckoned for two cores
    seconds: Mapping[str, float]


STAGES = {
    "stage1": Stage(stage1.Stage1(), stage1.run, stage1.memory_bytes, {"cuda": 0.006, "cpu": 1.5}),
}


@dataclass(frozen=True, slots=True)
class Inputs:
    data: Path
    pocket_kb: Path | None = None
    limit: int | None = None


def train(
    name: str,
    inputs: Inputs,
    out: Path,
    *,
    seed: int = 2026,
    changes: Sequence[str] = (),
    progress: Progress = lambda *_: None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Train one stage, or go on with it where a kill stopped it."""
    if name not in STAGES:
        raise UserError(f"no stage {name!r}; there is {', '.join(STAGES)}")
    stage = STAGES[name]
    settings = override(stage.settings, read_settings(changes))
    mixed = mixture.read(inputs.data, inputs.pocket_kb, inputs.limit)
    run = Run(out, seed, progress, say)
    run.claim(
        {
            "stage": name,
            "seed": seed,
            "limit": inputs.limit,
            "examples": len(mixed.examples),
            "photos": len(mixed.photos),
            "data": mixed.fingerprint(),
            "settings": dataclasses.asdict(settings),
        }
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    run.say(f"{name}: {_size(stage, mixed, settings, device)}")
    return stage.run(mixed, settings, run, device)


def _size(stage: Stage, mixed: Mixture, settings: Any, device: torch.device) -> str:
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    return (
        f"{len(mixed.examples):,} questions on {len(mixed.photos):,} photos, "
        f"{stage.memory_bytes(mixed, settings) / 1e9:.1f} GB of features, on {where}: about "
        f"{_duration(stage.seconds[device.type] * len(mixed.examples))}"
    )


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6_000 else f"{seconds / 3_600:.0f} h"
