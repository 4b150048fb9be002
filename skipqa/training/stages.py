"""The stages of training in their order, and the one entry point that runs them.

To add a stage: write a module with a `TrainingStage` (`stage.py`; one that learns from records of
the pipeline is a `PathwayStage` of parts, see `pathway/stage.py`), and add it to `STAGES` below at
its place in the order, and a line to `summaries.py`. `skipqa train NAME`, `--set` and `skipqa train
all` know it from then on.

Enters: a stage's name, inputs, a run, changed settings. Leaves: the run's folder, and the metrics
of its parts. Whoever calls this draws the progress. It runs where only torch, numpy, Pillow,
tokenizers and safetensors are installed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skipqa import components
from skipqa.config import override, preset, read_settings
from skipqa.errors import UserError, choices
from skipqa.training import confidence, fast_path, text_gate
from skipqa.training.cells import stage as cells
from skipqa.training.export import drop_stale_choice
from skipqa.training.grounding import stage as grounding
from skipqa.training.hop import stage as hop
from skipqa.training.pathway import (
    stage2_saliency,
    stage3_fusion,
    stage4_verifier,
    stage5_budget,
    stage6_joint,
)
from skipqa.training.pipelines import Source
from skipqa.training.reader import stage as reader
from skipqa.training.retrieval import sparse_query
from skipqa.training.run import Run
from skipqa.training.stage import Inputs, Metrics, TrainingStage
from skipqa.training.stage1 import backbone

STAGES: tuple[TrainingStage, ...] = (
    sparse_query.STAGE,  # "splade": what to ask an index
    backbone.STAGE,  # the backbone: encoder, tagger, drafter, and a reader of what is found
    reader.STAGE,  # of a preset with another decoder; the pocket's own, further
    cells.STAGE,  # what single tokens show
    grounding.STAGE,  # QVS: which tokens show what is asked about
    stage2_saliency.STAGE,  # QVS of each token by itself
    stage3_fusion.STAGE,  # BSCA
    stage4_verifier.STAGE,  # SKV
    stage5_budget.STAGE,  # DBC
    stage6_joint.STAGE,
    hop.STAGE,  # SKIP-Iter: what passages name that is to be asked about next
    text_gate.STAGE,  # "ocr": when text in the image is read
    fast_path.STAGE,  # when a draft is enough, with everything else in place
    confidence.STAGE,  # how certain an answer is, on either path
)
ALL = "all"
NAMES = (*(stage.name for stage in STAGES), ALL)


def train(
    name: str,
    inputs: Inputs,
    run: Run,
    changes: Sequence[str] = (),
    stages: Sequence[TrainingStage] = STAGES,
) -> Metrics:
    """Train one stage, or all, or resume what a kill stopped."""
    if name == ALL:
        if changes:
            raise UserError("settings are of one stage: train it alone to change them")
        return _train_all(inputs, run, stages)
    by_name = {stage.name: stage for stage in stages}
    if name not in by_name:
        raise UserError(f"no stage {name!r}; there is {choices(name, (*by_name, ALL))}")
    stage = by_name[name]
    preset(inputs.preset)  # an unknown name is reported first
    if why := stage.refuses(inputs.preset):
        raise UserError(f"{name} trains nothing for preset {inputs.preset}: {why}")
    settings = settings_of(inputs.settings, stages)[name]
    return _run(stage, inputs, override(settings, read_settings(changes)), run)


def settings_of(path: Path | None, stages: Sequence[TrainingStage] = STAGES) -> dict[str, Any]:
    """Of every stage, as its table in a TOML file changes them."""
    found = {stage.name: stage.settings for stage in stages}
    if path is None:
        return found
    if not path.is_file():
        raise UserError(f"no settings at {path}")
    for name, changes in components.read_settings(path).items():
        if name not in found:
            raise UserError(f"{path}: no stage {name!r}; there is {choices(name, found)}")
        found[name] = override(found[name], changes, f"{name}.")
    return found


def _run(stage: TrainingStage, inputs: Inputs, settings: Any, run: Run) -> Metrics:
    found = stage.run(inputs, settings, run)
    drop_stale_choice(Source(inputs.preset, inputs.components).start, run)
    return found


def _train_all(inputs: Inputs, run: Run, stages: Sequence[TrainingStage]) -> Metrics:
    """One folder per stage that trains for the preset, each beginning with the components of the
    one before; the last folder is a complete checkpoint. Given components stand in for the stages
    that make the backbone."""
    inputs.require_pocket_kb(ALL)  # before stage I, which would do without
    inputs = dataclasses.replace(inputs, records=inputs.records or run.folder / "records")
    metrics: dict[str, Any] = {}
    preset(inputs.preset)
    settings = settings_of(inputs.settings, stages)
    for stage in stages:
        if not stage.part_of_all(inputs.preset):
            continue
        if stage.makes_backbone and inputs.components and not metrics:
            continue
        folder = run.folder / stage.name
        found = _run(stage, inputs, settings[stage.name], dataclasses.replace(run, folder=folder))
        metrics[stage.name] = found
        if inputs.limit is None:  # a trial need not pass
            stage.check(found)
        inputs = dataclasses.replace(inputs, components=folder)
    return metrics
