"""Pipelines in worker processes: how each builds its own, and jobs that are spread over them.

Enters: where components and an index lie (`Source`), a function of a pipeline, its jobs. Leaves:
the results in the order of the jobs. It knows nothing of what is trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from skipqa.costs.environment import available_cores
from skipqa.knowledge import Index
from skipqa.parallel import Here, Workers
from skipqa.pipeline import Pipeline, bundled_components, load
from skipqa.training.run import Counted

Job = tuple[Any, ...]  # a function and what it is called with after the pipeline
PipelineWorkers = Here[Job, Any] | Workers[Job, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """How a process builds the pipeline for itself."""

    preset: str = "pocket"
    components: Path | None = None
    index: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Pipeline:
        pipeline = load(
            self.preset,
            components=self.components,
            index=self.index,
            overrides=dict(self.overrides),
        )
        index = Index.open(
            pipeline.index.folder,
            trained_query=pipeline.components.sparse_query,
            query_cache=1_024,  # most questions are asked about many images
        )
        return Pipeline(replace(pipeline.parts, index=index))

    @property
    def folder(self) -> Path:
        """Of the components, the bundled ones if none are named."""
        folder = self.components or bundled_components(self.preset)
        assert folder is not None, f"no components are bundled with {self.preset}"
        return folder

    def fingerprint(self, without: Sequence[str] = ()) -> dict[str, Any]:
        """Of the preset, the index, and the components but those named."""
        folder = self.components or bundled_components(self.preset)
        digest = hashlib.sha256()
        for path in sorted(folder.glob("*.safetensors")) if folder else ():
            if path.stem not in without:
                digest.update(path.name.encode() + path.read_bytes())
        index = "default" if self.index is None else (self.index / "manifest.json").read_text()
        return {
            "preset": self.preset,
            "seeing": digest.hexdigest()[:16],
            "index": hashlib.sha256(index.encode()).hexdigest()[:16],
            "overrides": dict(self.overrides),
        }


def open_workers(source: Source, processes: int | None = None) -> PipelineWorkers:
    """As many processes as there are cores, or so many; with fewer than two, this process."""
    count = available_cores() if processes is None else processes
    if count < 2:
        return Here(partial(_ready, source))
    return Workers(partial(_ready_alone, source), count)


def run_jobs(
    workers: PipelineWorkers,
    work: Callable[..., Any],
    jobs: Sequence[tuple[Any, ...]],
    counted: Counted = lambda *_: None,
) -> list[Any]:
    """`work(pipeline, *job)` of every job, in their order."""
    counted(0, len(jobs))
    found: list[Any] = []
    for result in workers.map((work, *job) for job in jobs):
        found.append(result)
        counted(len(found), len(jobs))
    return found


def _ready(source: Source) -> Callable[[Job], Any]:
    return partial(_call, source.load())


def _ready_alone(source: Source) -> Callable[[Job], Any]:
    torch.set_num_threads(1)  # a process per core: threads of one would wait for another's
    return _ready(source)


def _call(pipeline: Pipeline, job: Job) -> Any:
    work, *given = job
    return work(pipeline, *given)
