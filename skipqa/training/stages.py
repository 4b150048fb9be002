"""The stages of training by name, and what is common to them: the one way in.

Enters: a stage's name, the data, a folder, changed settings. Leaves: the folder, and the metrics
of its parts. What calls this draws the progress; it runs where only torch, numpy, Pillow,
tokenizers and safetensors are installed.

Stage I learns from photos; II to VI from records of the pipeline that I gave (`gather.py`), which
they share. "splade" learns what to ask an index from passages alone. "all" is one folder for each
of them, each beginning with what the one before left; the last one's holds a whole checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from skipqa.components import SETTINGS, change_settings
from skipqa.config import override, read_settings
from skipqa.errors import UserError, choices
from skipqa.training.pathway import context as context
from skipqa.training.pathway import stage2_saliency as pruning
from skipqa.training.pathway import stage3_fusion as pathways
from skipqa.training.pathway import stage4_verifier as verifying
from skipqa.training.pathway import stage5_budget as budgeting
from skipqa.training.pathway import stage6_joint as together
from skipqa.training.pathway.context import Gathering, TrainingContext
from skipqa.training.pathway.gather import Source
from skipqa.training.retrieval import sparse_query as sparse
from skipqa.training.run import Progress, Run
from skipqa.training.stage1 import mixture
from skipqa.training.stage1 import stage as stage1
from skipqa.training.stage1.mixture import Mixture


@dataclass(frozen=True, slots=True)
class Stage:
    settings: Any  # the defaults, a frozen dataclass
    run: Callable[[Mixture, Any, Run, torch.device], dict[str, Any]]
    memory_bytes: Callable[[Mixture, Any], int]
    # At the default settings, for each question: measured on an H200, reckoned for two cores
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Later:
    """A stage that learns from records."""

    settings: Any
    run: Callable[[TrainingContext, Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Settings:
    """Of a stage that learns from records; `train` is its own part."""

    train: Any
    records: Gathering = field(default_factory=Gathering)


STAGES = {
    "stage1": Stage(stage1.Stage1(), stage1.run, stage1.memory_bytes, {"cuda": 0.006, "cpu": 1.5}),
}
LATER = {
    "stage2": Later(Settings(pruning.SaliencyTraining()), pruning.run),
    "stage3": Later(Settings(pathways.PathwayTraining()), pathways.run),
    "stage4": Later(Settings(verifying.VerifierTraining()), verifying.run),
    "stage5": Later(Settings(budgeting.BudgetTraining()), budgeting.run),
    "stage6": Later(Settings(together.JointTraining()), together.run),
}
RETRIEVAL, ALL = "splade", "all"
NAMES = (*STAGES, *LATER, RETRIEVAL, ALL)


@dataclass(frozen=True, slots=True)
class Inputs:
    data: Path | None = None  # photos and questions about them: all but "splade" learn from these
    pocket_kb: Path | None = None
    limit: int | None = None
    components: Path | None = None  # what stages II to VI begin with, else what is shipped
    index: Path | None = None  # has Pocket-KB's passages in it, else the default one
    records: Path | None = None  # else beside the stage's folder


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
    """Train one stage, or all, or go on where a kill stopped it."""
    if name not in NAMES:
        raise UserError(f"no stage {name!r}; there is {choices(name, NAMES)}")
    if name == ALL:
        if changes:
            raise UserError("settings are of one stage: train it alone to change them")
        one = partial(train, seed=seed, progress=progress, say=say)
        return _train_all(one, inputs, out)
    if name == RETRIEVAL:
        return _train_retrieval(inputs, Run(out, seed, progress, say), changes)
    if name in LATER:
        return _train_later(name, inputs, Run(out, seed, progress, say), changes)
    stage = STAGES[name]
    settings = override(stage.settings, read_settings(changes))
    mixed = mixture.read(_data(name, inputs), inputs.pocket_kb, inputs.limit)
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


def _train_all(one: Callable[..., Any], inputs: Inputs, out: Path) -> dict[str, Any]:
    """Where components are given, these stand for what comes before the later stages. A trial need
    not pass the gate."""
    _pocket_kb(ALL, inputs)  # before stage I, which would do without
    metrics: dict[str, Any] = {}
    inputs = dataclasses.replace(inputs, records=inputs.records or out / "records")
    for name in (*(() if inputs.components else (*STAGES, RETRIEVAL)), *LATER):
        metrics[name] = one(name, inputs, out / name)
        if name in STAGES and inputs.limit is None:
            stage1.check_gate(metrics[name])
        inputs = dataclasses.replace(inputs, components=out / name)
    return metrics


def _train_retrieval(inputs: Inputs, run: Run, changes: Sequence[str]) -> dict[str, Any]:
    settings = override(sparse.SparseTraining(), read_settings(changes))
    run.claim(
        {
            "stage": RETRIEVAL,
            "seed": run.seed,
            "limit": inputs.limit,
            "pocket_kb": inputs.pocket_kb is not None,
            "settings": dataclasses.asdict(settings),
        }
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    metrics = sparse.run(inputs.pocket_kb, inputs.index, settings, run, device, inputs.limit)
    if inputs.components is not None:
        context.take_over(inputs.components, run.folder)
    change_settings(run.folder / SETTINGS, retrieve=sparse.RETRIEVE)
    return metrics


def _train_later(name: str, inputs: Inputs, run: Run, changes: Sequence[str]) -> dict[str, Any]:
    stage = LATER[name]
    settings = override(stage.settings, read_settings(changes))
    wanted = settings.records
    if inputs.limit is not None:
        wanted = wanted.at_most(inputs.limit)
    pocket_kb, data = _pocket_kb(name, inputs), _data(name, inputs)
    source = Source(components=inputs.components, index=inputs.index)
    run.claim(
        {
            "stage": name,
            "seed": run.seed,
            "limit": inputs.limit,
            **source.fingerprint(),
            "settings": dataclasses.asdict(settings),
        }
    )
    folder = inputs.records or run.folder.parent / "records"
    begun = context.begin(source, data, pocket_kb, wanted, folder, run)
    metrics = stage.run(begun, settings.train)
    run.forget_states()
    return metrics


def _data(name: str, inputs: Inputs) -> Path:
    if inputs.data is None:
        raise UserError(f"{name} learns from photos: give --data")
    return inputs.data


def _pocket_kb(name: str, inputs: Inputs) -> Path:
    if inputs.pocket_kb is None:
        raise UserError(f"{name} learns from passages that are known to answer: give Pocket-KB")
    return inputs.pocket_kb


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
