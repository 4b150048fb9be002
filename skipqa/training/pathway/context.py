"""What stages II to VI have in common: the records, the pipeline they begin with, what they leave.

A run's folder is a folder of components that answers questions (`--components`): what the stage
began with, and of what it trained each part that is at least as good as the training-free stage on
held-out questions; besides, a rival's keep head, which answers nothing. All that was trained,
better or not, is in `trained/`, where the next stage looks first. Nothing here trains.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skipqa import components
from skipqa.backbones.backbone import Backbone, EncodedTexts
from skipqa.components import NAMES, SETTINGS, Components
from skipqa.config import CountOrNone
from skipqa.evaluation.systems.changes import with_backbone
from skipqa.nn import checkpoint
from skipqa.pipeline import Pipeline
from skipqa.training.pathway import gather
from skipqa.training.pathway.gather import Source
from skipqa.training.pathway.records import Records, collect
from skipqa.training.run import Run

TRAINED = "trained"
A_PART = 8  # questions that a process is sent at a time


@dataclass(frozen=True, slots=True)
class Gathering:
    """How many questions of each kind are gathered."""

    train: CountOrNone = 2_500
    fresh: CountOrNone = 500  # of photos that stage I never saw, also to learn from
    held_out: CountOrNone = 500
    val: CountOrNone = 400
    okvqa: CountOrNone = 300  # held-out questions, where retrieval seldom helps
    okvqa_val: CountOrNone = 150
    workers: CountOrNone = 0  # processes; 0: as many as there are cores

    def at_most(self, limit: int) -> Gathering:
        names = ("train", "fresh", "held_out", "val", "okvqa", "okvqa_val")
        return replace(self, **{name: min(limit, getattr(self, name)) for name in names})

    def counts(self) -> dict[str, int]:
        return {
            "pocket-kb/train": self.train,
            "pocket-kb/fresh": self.fresh,
            "pocket-kb/held-out": self.held_out,
            "pocket-kb/val": self.val,
            "okvqa/held-out": self.okvqa,
            "okvqa/val": self.okvqa_val,
        }


@dataclass(frozen=True, slots=True)
class TrainingContext:
    records: Records
    pipeline: Pipeline  # as it answers with what the stage began with
    learned: Components  # what earlier stages trained, whether it ships or not
    run: Run
    source: Source  # how other processes build the same pipeline
    workers: int | None = None  # processes; None: as many as there are cores
    texts: dict[str, Tensor] = field(default_factory=dict)  # embeddings

    def rows(self, split: str, *, gold: bool = False) -> list[int]:
        """Of Pocket-KB, whose answers are known to be in passages; `gold`: those that name them."""
        found = self.records.select(split, "pocket-kb")
        return [i for i in found if self.records.about[i]["gold_rows"]] if gold else found

    def categories(self, rows: Sequence[int]) -> list[str]:
        return [self.records.about[i]["category"] for i in rows]

    def embed(self, texts: Sequence[str]) -> Tensor:
        """[len(texts), d], each text encoded once; to be used in training."""
        for text in texts:
            if text not in self.texts:
                encoded = self.pipeline.backbone.encode_texts([text])
                self.texts[text] = encoded.embeddings[0].clone()
        return torch.stack([self.texts[text] for text in texts])

    def spread(
        self, work: Callable[..., list[Any]], rows: Sequence[int], what: str, *more: Any
    ) -> list[Any]:
        """What `work(pipeline, records, *more)` finds of each question of its part of the records,
        for all `rows`, in their order, over all cores."""
        parts = [rows[first : first + A_PART] for first in range(0, len(rows), A_PART)]
        counted = self.run.counted(what)
        found = gather.spread(
            work,
            self.source,
            [(self.records.part(part), *more) for part in parts],
            lambda done, _: counted(min(len(rows), done * A_PART), len(rows)),
            workers=self.workers,
        )
        return [one for some in found for one in some]

    def leave(self, module: nn.Module, name: str, *, ships: bool) -> None:
        """Its file, where the next stage finds it, and beside the others if it `ships`."""
        preset = self.pipeline.config.preset
        checkpoint.save(module, self.run.folder / TRAINED / f"{name}.safetensors", preset=preset)
        if ships:
            path = self.run.folder / f"{name}.safetensors"
            checkpoint.save(module, path, preset=preset, eight_bit=True)

    def set(self, **settings: Mapping[str, Any]) -> None:
        """Write settings into those that answering reads."""
        components.change_settings(self.run.folder / SETTINGS, **settings)


def begin(
    source: Source,
    data: Path | None,
    pocket_kb: Path | None,
    wanted: Gathering,
    folder: Path,
    run: Run,
) -> TrainingContext:
    """`folder` has, or gets, the records."""
    rows = gather.questions(data, pocket_kb, wanted.counts(), seed=2026)
    gathering = Run(folder, run.seed, run.progress, run.say)
    records = collect(rows, source, gathering, workers=wanted.workers or None)
    loaded = source.load()
    pipeline = with_backbone(loaded, CachedBackbone(loaded.backbone))
    start = pipeline.components.folder
    if start is not None:
        take_over(start, run.folder)
    learned = pipeline.components
    if start is not None and (start / TRAINED).is_dir():
        more = components.load(start / TRAINED, preset=pipeline.config.preset)
        learned = _joined(learned, more)
        take_over(start / TRAINED, run.folder / TRAINED)
    table = records.table
    known = {p.text: e for p, e in zip(table.passages, table.embeddings, strict=True)}
    return TrainingContext(records, pipeline, learned, run, source, wanted.workers or None, known)


class CachedBackbone:
    """A backbone that encodes the texts of late once: budgets and components are compared on the
    same questions about the same titles."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self._encode = lru_cache(maxsize=4_096)(lambda text: backbone.encode_texts([text]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backbone, name)

    def encode_texts(self, texts: Sequence[str]) -> EncodedTexts:
        parts = [self._encode(text) for text in texts]
        if not parts:
            return self.backbone.encode_texts(texts)
        return EncodedTexts(
            torch.cat([part.embeddings for part in parts]),
            tuple(part.states[0] for part in parts),
            sum(part.flops for part in parts),
        )


def _joined(below: Components, above: Components) -> Components:
    return replace(below, **{n: m for n in NAMES if (m := getattr(above, n)) is not None})


def take_over(start: Path, folder: Path) -> None:
    """The files of a folder of components in another; those that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(start.iterdir()):
        wanted = path.suffix == ".safetensors" or path.name == SETTINGS
        if wanted and not (folder / path.name).exists():
            _link_or_copy(path, folder / path.name)


def _link_or_copy(path: Path, target: Path) -> None:
    if path.name == SETTINGS:  # will be rewritten
        shutil.copyfile(path, target)
        return
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)
