"""What stages II to VI have in common: the records, the pipeline they begin with, their folder.

A run's folder is a folder of components that answers questions (`--components`): what the stage
began with, and each component it trained that is at least as good as the training-free stage on
held-out questions; also a baseline's keep head, which answers nothing. Everything that was trained,
better or not, is in `trained/`, where the next stage looks first. Nothing here trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skipqa import components
from skipqa.backbones.caching import CachedBackbone, uncached
from skipqa.components import NAMES, SETTINGS, Components
from skipqa.config import NonNegative
from skipqa.nn import checkpoint
from skipqa.pipeline import Pipeline
from skipqa.training.export import copy_components
from skipqa.training.pathway.gather import Gathered, records_fingerprint
from skipqa.training.pathway.records import Records, collect
from skipqa.training.pipelines import PipelineWorkers, Source, open_workers, run_jobs
from skipqa.training.run import Run

TRAINED = "trained"
QUESTIONS_PER_JOB = 8


@dataclass(frozen=True, slots=True)
class Gathering:
    """How many questions of each source and split are gathered, at most."""

    pocket_kb_train: NonNegative = 1_500
    pocket_kb_fresh: NonNegative = 500  # of photos that stage I never saw, also to train on
    pocket_kb_held_out: NonNegative = 500
    pocket_kb_val: NonNegative = 400
    crowded_train: NonNegative = 1_000
    crowded_fresh: NonNegative = 300
    crowded_held_out: NonNegative = 300
    crowded_val: NonNegative = 200
    unseen_val: NonNegative = 200
    fvqa_train: NonNegative = 1_000
    fvqa_held_out: NonNegative = 200
    fvqa_val: NonNegative = 0
    okvqa_train: NonNegative = 2_500
    okvqa_held_out: NonNegative = 800
    okvqa_val: NonNegative = 0
    workers: NonNegative = 0  # processes; 0: as many as there are cores

    def at_most(self, limit: int) -> Gathering:
        return replace(self, **{name: min(limit, getattr(self, name)) for name in _KINDS})

    def counts(self) -> dict[str, int]:
        """By `source/split`, as `gather.questions` names them."""
        return {kind: getattr(self, name) for name, kind in _KINDS.items()}


# The field of each `source/split`
_KINDS = {
    f"{source}_{split}".replace("-", "_"): f"{source}/{split}"
    for source, splits in {
        "pocket-kb": ("train", "fresh", "held-out", "val"),
        "crowded": ("train", "fresh", "held-out", "val"),
        "unseen": ("val",),
        "fvqa": ("train", "held-out", "val"),
        "okvqa": ("train", "held-out", "val"),
    }.items()
    for split in splits
}
NAMING_GOLD = ("pocket-kb", "crowded")  # sources that name the passages of most answers


@dataclass(frozen=True, slots=True)
class TrainingContext:
    records: Records
    pipeline: Pipeline  # as it answers with what the stage began with
    learned: Components  # what earlier stages trained, whether it ships or not
    run: Run
    workers: PipelineWorkers  # the same pipeline in other processes
    records_folder: Path  # for what else is computed from the records alone
    unseen_passages: frozenset[str] = frozenset()  # about entities that nothing is trained on
    texts: dict[str, Tensor] = field(default_factory=dict)  # embeddings
    computed: dict[str, Any] = field(default_factory=dict)  # what the parts of a stage share

    def rows(self, split: str, *, gold: bool = False) -> list[int]:
        """Of Pocket-KB, whose answers are known to be in passages; `gold`: those that name them.
        Unseen entities are scored by stage IV alone."""
        found = [i for source in NAMING_GOLD for i in self.records.select(split, source)]
        return [i for i in found if self.records.about[i]["gold_rows"]] if gold else found

    def categories(self, rows: Sequence[int]) -> list[str]:
        return [self.records.about[i]["category"] for i in rows]

    def embed(self, texts: Sequence[str]) -> Tensor:
        """[len(texts), d], each text encoded once; to be used in training."""
        missing = [text for text in dict.fromkeys(texts) if text not in self.texts]
        together = uncached(self.pipeline.backbone)  # the cached one encodes them one by one
        encoded = together.encode_texts(missing).embeddings
        self.texts.update(zip(missing, encoded.clone(), strict=True))
        return torch.stack([self.texts[text] for text in texts])

    def spread(
        self, work: Callable[..., list[Any]], rows: Sequence[int], what: str, *more: Any
    ) -> list[Any]:
        """What `work(pipeline, records, *more)` finds for each question of its slice of the
        records, for all `rows`, in their order, over all workers."""
        slices = [
            rows[first : first + QUESTIONS_PER_JOB]
            for first in range(0, len(rows), QUESTIONS_PER_JOB)
        ]
        counted = self.run.counted(what)
        found = run_jobs(
            self.workers,
            work,
            [(self.records.part(some), *more) for some in slices],
            lambda done, _: counted(min(len(rows), done * QUESTIONS_PER_JOB), len(rows)),
        )
        return [one for some in found for one in some]

    def export(self, module: nn.Module, name: str, *, ships: bool) -> None:
        """Its file, where the next stage finds it, and among the components if it `ships`."""
        preset = self.pipeline.config.preset
        checkpoint.save(module, self.run.folder / TRAINED / f"{name}.safetensors", preset=preset)
        if ships:
            path = self.run.folder / f"{name}.safetensors"
            checkpoint.save(module, path, preset=preset, eight_bit=True)

    def set(self, **settings: Mapping[str, Any]) -> None:
        """Write settings next to the components, where answering reads them."""
        components.change_settings(self.run.folder / SETTINGS, **settings)


@contextmanager
def begin(
    source: Source, rows: Sequence[Gathered], gathering: Gathering, folder: Path, run: Run
) -> Iterator[TrainingContext]:
    """What a stage works with, its processes included; they end with the block. `folder` has, or
    gets, the records of `rows`."""
    with open_workers(source, gathering.workers or None) as workers:
        gathered = Run(folder, run.seed, run.progress, run.say)
        loaded = source.load()
        fingerprint = records_fingerprint(source)
        with run.first_alone():  # it gathers, the others read
            records = collect(rows, fingerprint, loaded.library, workers, gathered)
        pipeline = loaded.with_backbone(CachedBackbone(loaded.backbone))
        start = pipeline.components.folder
        if start is not None:
            copy_components(start, run.folder)
        learned = pipeline.components
        if start is not None and (start / TRAINED).is_dir():
            more = components.load(start / TRAINED, preset=pipeline.config.preset)
            learned = _joined(learned, more)
            copy_components(start / TRAINED, run.folder / TRAINED)
        yield TrainingContext(records, pipeline, learned, run, workers, folder)


def _joined(below: Components, above: Components) -> Components:
    return replace(below, **{n: m for n in NAMES if (m := getattr(above, n)) is not None})
