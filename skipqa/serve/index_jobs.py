"""An uploaded index on disk: the state of its build, and where its files lie.

    NAME/NUMBER/job.json      the state; a folder without one is a leftover
    NAME/NUMBER/documents/    the uploaded files
    NAME/NUMBER/index/NAME/   the index: a library names an index after the last part of its folder
    NAME/NUMBER/scratch/      temporary files of the build

Every upload of a name is a generation of its own with a higher number, so a folder never changes
what it is about. Enters: a folder. Leaves: a `Generation`, and what is told of an index
(`IndexStatus`). It knows neither processes nor HTTP.
"""

from __future__ import annotations

import errno
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from skipqa.errors import UserError
from skipqa.files import read_json, write_json
from skipqa.knowledge.estimate import (
    CHARACTERS_PER_PASSAGE,
    INDEX_BYTES_PER_CHARACTER,
    INDEX_BYTES_PER_PASSAGE,
)
from skipqa.knowledge.index.format import open_segments, read_manifest

JOB = "job.json"
EMPTY_INDEX_BYTES = 1_300_000  # the tokenizer, and three tables over all terms
INDEX_BYTES_PER_BYTE = INDEX_BYTES_PER_CHARACTER + INDEX_BYTES_PER_PASSAGE / CHARACTERS_PER_PASSAGE
DISK_FULL = "no space left on the disk"

State = Literal["building", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class Progress:
    step: str
    done: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file, or a row of one, that is not in the index."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """What is told of an index. While its documents are replaced, or if that failed, `passages`
    counts those of the earlier index, which stays in use."""

    name: str
    status: State
    progress: Progress
    passages: int
    bytes: int  # of the quota
    documents: int
    skipped: tuple[Skipped, ...]
    error: str | None
    built_in: bool
    created: int  # seconds since 1970

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"skipped": [asdict(one) for one in self.skipped]}


@dataclass(frozen=True, slots=True)
class Job:
    """What job.json holds."""

    state: State
    created: int
    documents: int
    document_bytes: int
    skipped: tuple[Skipped, ...] = ()  # files of the upload
    bad_rows: tuple[Skipped, ...] = ()  # that the build could not read
    starts: int = 0  # of the build, without those that were stopped on purpose
    passages: int = 0
    index_bytes: int = 0
    error: str | None = None

    def write(self, folder: Path) -> None:
        write_json(folder / JOB, asdict(self), indent=1)

    @staticmethod
    def read(folder: Path) -> Job:
        try:
            stored = read_json(folder / JOB)
            for name in ("skipped", "bad_rows"):
                stored[name] = tuple(Skipped(**one) for one in stored[name])
            return Job(**stored)
        except (UserError, TypeError, KeyError):
            created = int((folder / JOB).stat().st_mtime)
            reason = "the file about its build is damaged: upload the documents again"
            return Job("failed", created, 0, 0, error=reason)


@dataclass(slots=True, eq=False)
class Place:
    """The folder of a generation, NAME/NUMBER."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.parent.name

    @property
    def number(self) -> int:
        return int(self.folder.name)

    @property
    def index(self) -> Path:
        return self.folder / "index" / self.name

    @property
    def documents(self) -> Path:
        return self.folder / "documents"

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"


@dataclass(slots=True, eq=False)
class Generation(Place):
    """One upload under a name. `discarded` once it was deleted or replaced."""

    job: Job
    progress: Progress = field(default_factory=lambda: Progress("waiting"))
    discarded: bool = False

    @property
    def expected_index_bytes(self) -> int:
        return expected_index_bytes(self.job.document_bytes)

    @property
    def charged_bytes(self) -> int:
        """What the quota counts: files that are there, and an index that is not there yet."""
        if self.job.state == "failed":
            return 0
        ready = self.job.state == "ready"
        index = self.job.index_bytes if ready else self.expected_index_bytes
        return self.job.document_bytes + index

    def save(self, **changes: Any) -> None:
        """In memory even where the disk is full."""
        self.job = replace(self.job, **changes)
        self.job.write(self.folder)

    def discard(self) -> None:
        """Makes it a leftover. This takes no space, so it works on a full disk."""
        self.discarded = True
        (self.folder / JOB).unlink(missing_ok=True)

    def clear(self) -> None:
        """Removes everything but the state."""
        for folder in (self.index.parent, self.scratch, self.documents):
            shutil.rmtree(folder, ignore_errors=True)

    def is_damaged(self) -> bool:
        """Also of an index in the format of another release."""
        try:
            open_segments(self.index, read_manifest(self.index))
        except UserError:
            return True
        return False


def expected_index_bytes(document_bytes: int) -> int:
    return EMPTY_INDEX_BYTES + round(INDEX_BYTES_PER_BYTE * document_bytes)


def is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def status_of(generations: list[Generation]) -> IndexStatus:
    """Of the generations of one name, oldest first."""
    newest, used = generations[-1], in_use(generations)
    job = newest.job
    error = job.error
    if error is not None and used is not None:
        error = f"{error}; the earlier index is still in use"
    return IndexStatus(
        name=newest.name,
        status=job.state,
        progress=_progress(newest),
        passages=0 if used is None else used.job.passages,
        bytes=sum(generation.charged_bytes for generation in generations),
        documents=job.documents,
        skipped=job.skipped + job.bad_rows,
        error=error,
        built_in=False,
        created=job.created,
    )


def in_use(generations: list[Generation]) -> Generation | None:
    return next((one for one in reversed(generations) if one.job.state == "ready"), None)


def _progress(generation: Generation) -> Progress:
    job = generation.job
    if job.state == "building":
        return generation.progress
    return Progress(job.state, job.passages, job.passages if job.state == "ready" else None)
