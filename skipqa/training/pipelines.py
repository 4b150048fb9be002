"""Pipelines in worker processes: how each builds its own, and jobs that are spread over them.

Enters: where components and indexes lie (`Source`), a function of a pipeline, its jobs. Leaves:
the results in the order of the jobs. It knows nothing of what is trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from skipqa.components import BASED_ON, SETTINGS, bundled, read_settings, settings_for
from skipqa.config import Config, merged, preset
from skipqa.costs.environment import available_cores
from skipqa.errors import UserError
from skipqa.files import read_text
from skipqa.knowledge.default import DEFAULT, default_indexes
from skipqa.knowledge.engines import parse_uri
from skipqa.knowledge.index.format import MANIFEST
from skipqa.knowledge.library import Uri
from skipqa.parallel import InProcess, Workers
from skipqa.pipeline import Pipeline, load
from skipqa.training.run import Counted

Job = tuple[Any, ...]  # a function and what it is called with after the pipeline
PipelineWorkers = InProcess[Job, Any] | Workers[Job, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """How a process builds the pipeline for itself."""

    preset: str = "pocket"
    components: Path | None = None
    index: tuple[Uri, ...] = ()  # none: the default library
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Pipeline:
        return load(
            self.preset,
            components=self.components,
            index=self.index,
            overrides=dict(self.overrides),
            query_cache=1_024,  # most questions are asked about many images
        )

    @property
    def start(self) -> Path | None:
        """The folder of the components, the bundled ones if none are named."""
        return self.components or bundled(self.preset)

    @property
    def folder(self) -> Path:
        """The same, for a stage that needs one to begin with."""
        if self.start is None:
            raise UserError(f"nothing is bundled with preset {self.preset}: give --components")
        return self.start

    @property
    def config(self) -> Config:
        """As the pipeline will have it, without loading that."""
        return preset(self.preset, merged(settings_for(self.preset, self.start), self.overrides))

    def fingerprint(
        self, without: Sequence[str] = (), without_settings: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Of the preset, the indexes, the components but those named, and the settings that came
        with them but those named, as `group` or as `group.name`."""
        own = {} if self.start is None else read_settings(self.start / SETTINGS)
        settings = {
            f"{group}.{name}": value
            for group, values in own.items()
            for name, value in values.items()
            if not {group, f"{group}.{name}"} & set(without_settings)
        }
        based_on = BASED_ON.get(self.preset)
        base = None if based_on is None else bundled(based_on)
        below = {} if base is None else {"base": components_digest(base)}
        return {
            "preset": self.preset,
            **below,
            "components": components_digest(self.start, without),
            "component_settings": settings,
            "indexes": index_digests(self.index),
            "overrides": dict(self.overrides),
        }


def components_digest(folder: Path | None, without: Sequence[str] = ()) -> str:
    """Of all components in a folder but those named; of a folder that is not there, of none."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors") if folder is not None else ()):
        if path.stem not in without:
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def index_digests(uris: Sequence[Uri]) -> list[str]:
    """Of what is in each index, wherever it lies and whichever engine searches it; an index of the
    default library counts by its corpus, as every machine builds its own."""
    found: list[str] = []
    for uri in uris or [DEFAULT]:
        if str(uri) == DEFAULT:
            found += (f"{DEFAULT} {name}" for name in default_indexes())
        else:
            _, folder, _ = parse_uri(str(uri))
            found.append(text_digest(folder / MANIFEST))
    return found


def text_digest(path: Path) -> str:
    return hashlib.sha256(read_text(path).encode()).hexdigest()[:16]


def open_workers(source: Source, processes: int | None = None) -> PipelineWorkers:
    """As many processes as there are cores, or so many; with fewer than two, this process."""
    count = available_cores() if processes is None else processes
    if count < 2:
        return InProcess(partial(_ready, source))
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
