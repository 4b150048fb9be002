"""The store of uploaded indexes: people's own documents, indexed in the background.

Enters: uploads (`create`). Leaves: what is known of each index (`IndexStatus`), and the folder of
one that is ready. `start` takes the folder for this store alone and goes on with builds that were
interrupted; one build runs at a time, in a process of its own (`build_index`). Whatever is killed,
an index is either as it was or complete.

Methods that are not async do disk work and may be called from any thread between `start` and
`stop`. It does not know HTTP, nor who is asking.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from skipqa.errors import UserError
from skipqa.files import claim
from skipqa.knowledge.default import DEFAULT
from skipqa.knowledge.sources import BUILT_IN
from skipqa.serve.build_process import BuildProcess, Message
from skipqa.serve.index_jobs import (
    DISK_FULL,
    JOB,
    Generation,
    IndexStatus,
    Job,
    Progress,
    Skipped,
    in_use,
    is_full,
    status_of,
)
from skipqa.serve.index_upload import (
    BadFileName,
    DiskFull,
    FileTooLarge,
    Limits,
    NothingToIndex,
    QuotaExceeded,
    StoreError,
    TooManyFiles,
    Upload,
)

__all__ = [
    "BadFileName",
    "BadIndexName",
    "DiskFull",
    "FileTooLarge",
    "IndexBusy",
    "IndexStatus",
    "IndexStore",
    "Limits",
    "NotReady",
    "NothingToIndex",
    "Progress",
    "QuotaExceeded",
    "Skipped",
    "StoreError",
    "TooManyFiles",
    "TooManyIndexes",
    "UnknownIndex",
    "Upload",
]

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
CLAIM = "store.json"
LOCK = ".lock"
UPLOADS = ".uploads"

Statuses = list[IndexStatus]
Generations = list[Generation]
log = logging.getLogger(__name__)


class BadIndexName(StoreError):
    code = "bad_index_name"


class IndexBusy(StoreError):
    code = "index_busy"


class TooManyIndexes(StoreError):
    code = "too_many_indexes"


class UnknownIndex(StoreError):
    code = "unknown_index"


class NotReady(StoreError):
    code = "index_not_ready"


class IndexStore:
    """`quota_bytes` counts documents and indexes, also those that are not built yet. Names in
    `reserved` are refused, as are those of the built-in corpora."""

    def __init__(
        self,
        folder: Path,
        quota_bytes: int,
        limits: Limits | None = None,
        reserved: Iterable[str] = (),
    ) -> None:
        self.folder = folder.expanduser().absolute()
        self.quota_bytes = quota_bytes
        self.limits = limits or Limits()
        self._reserved = {DEFAULT, *BUILT_IN, *reserved}
        self._guard = threading.RLock()  # of the next two, and of folders that come or go
        self._indexes: dict[str, Generations] = {}  # oldest first, never empty
        self._uploads: dict[str, Upload] = {}
        self._lock: IO[str] | None = None
        self._running: tuple[Generation, BuildProcess] | None = None
        self._removals: dict[Path, asyncio.Task[None]] = {}

    # Life

    async def start(self) -> None:
        """Goes on with what an earlier store over the same folder left."""
        await asyncio.to_thread(self._open)
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()  # there may be something to build
        self._change = asyncio.Event()  # replaced at every change
        self._closing = asyncio.Event()
        self._supervisor = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """Ends a running build; the next `start` goes on with it."""
        if self._lock is None:
            return
        self._supervisor.cancel()
        with suppress(asyncio.CancelledError):
            await self._supervisor
        self._closing.set()
        await asyncio.gather(*self._removals.values())
        self._give_folder()

    async def changed(self) -> None:
        """Waits until the status of some index changes."""
        await self._change.wait()

    @property
    def build_pid(self) -> int | None:
        """The process of the running build."""
        return None if self._running is None else self._running[1].pid

    # Indexes

    def create(self, name: str) -> Upload:
        """An upload for a new index, or for new documents of an existing one."""
        if not NAME.fullmatch(name):
            raise BadIndexName(
                f"{name[:80]!a} is no name of an index: it has 1 to 64 lower-case letters, "
                "digits, - and _, and begins with a letter or digit"
            )
        if name in self._reserved:
            raise BadIndexName(f"the name {name} is taken by the server: choose another")
        with self._guard:
            self._check_started()
            if name in self._uploads:
                raise IndexBusy(f"documents of {name} are just being uploaded: try again later")
            self._check_not_building(name)
            if len({*self._indexes, *self._uploads} - {name}) >= self.limits.indexes:
                raise TooManyIndexes(
                    f"there are {self.limits.indexes:,} indexes already: delete one first"
                )
            upload = Upload(name, self.folder / UPLOADS / uuid4().hex, self.limits, self)
            self._uploads[name] = upload
        return upload

    def list(self) -> Statuses:
        with self._guard:
            return [status_of(self._indexes[name]) for name in sorted(self._indexes)]

    def status(self, name: str) -> IndexStatus:
        with self._guard:
            return status_of(self._generations(name))

    def path(self, name: str) -> Path:
        """The folder of a built index. Another upload of the same name has another folder."""
        with self._guard:
            generations = self._generations(name)
            if (used := in_use(generations)) is not None:
                return used.index
            if (error := generations[-1].job.error) is not None:
                raise NotReady(f"the index {name} could not be built: {error}")
            raise NotReady(f"the index {name} is still being built")

    def delete(self, name: str) -> None:
        with self._guard:
            self._check_started()
            generations = self._generations(name)
            for generation in reversed(generations):  # the oldest last: it may be in use
                generation.discard()
            del self._indexes[name]
        self._loop.call_soon_threadsafe(self._forget, generations)

    def used_bytes(self) -> int:
        with self._guard:
            uploads = sum(upload.charged_bytes for upload in self._uploads.values())
            return uploads + sum(one.charged_bytes for one in self._living())

    # What an upload asks of its owner

    def check_room(self) -> None:
        if (used := self.used_bytes()) > self.quota_bytes:
            raise QuotaExceeded(
                f"with their index these documents would need {_megabytes(used)} of the "
                f"{_megabytes(self.quota_bytes)} for all indexes: delete one, or upload less"
            )

    def accept(self, upload: Upload) -> IndexStatus:
        job = Job(
            state="building",
            created=int(time.time()),
            documents=upload.num_documents,
            document_bytes=upload.num_bytes,
            skipped=upload.skipped,
        )
        job.write(upload.folder)
        with self._guard:
            self._check_started()
            known = self._indexes.get(upload.name, [])
            number = max(time.time_ns(), *(one.number + 1 for one in known), 0)
            target = self.folder / upload.name / str(number)
            target.parent.mkdir(mode=0o700, exist_ok=True)
            upload.folder.rename(target)
            self._indexes[upload.name] = [*known, Generation(target, job)]
            self.release(upload)
            status = self.status(upload.name)
        self._loop.call_soon_threadsafe(self._tell)
        return status

    def release(self, upload: Upload) -> None:
        with self._guard:
            if self._uploads.get(upload.name) is upload:
                del self._uploads[upload.name]

    def _check_started(self) -> None:
        if self._lock is None:
            raise RuntimeError("the store is not started")

    def _check_not_building(self, name: str) -> None:
        if name in self._indexes and self._indexes[name][-1].job.state == "building":
            raise IndexBusy(f"the index {name} is being built: wait, or delete it")

    def _generations(self, name: str) -> Generations:
        if name not in self._indexes:
            raise UnknownIndex(f"there is no index {name[:80]!a}")
        return self._indexes[name]

    def _living(self) -> Generations:
        return [one for generations in self._indexes.values() for one in generations]

    # What is on disk

    def _open(self) -> None:
        """Takes the folder, removes leftovers, reads what is there."""
        try:
            self._lock = self._take_folder()
            shutil.rmtree(self.folder / UPLOADS, ignore_errors=True)
            self._indexes = {}
            for folder in self.folder.iterdir():
                if NAME.fullmatch(folder.name) and folder.is_dir():
                    self._read(folder)
        except OSError as error:
            self._give_folder()
            raise UserError(f"{self.folder} cannot be used: {error.strerror}") from error

    def _take_folder(self) -> IO[str]:
        """Its lock. A folder of other things is refused: what looks like a leftover is removed."""
        import fcntl  # POSIX only, as for every index that is written

        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {path.name for path in self.folder.iterdir()}
        if CLAIM not in names and names - {LOCK}:
            raise UserError(f"{self.folder} holds other files: give an empty folder, or a new one")
        self.folder.chmod(0o700)
        lock = (self.folder / LOCK).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise UserError(
                f"another server uses {self.folder}: give this one a folder of its own"
            ) from None
        claim(self.folder / CLAIM, {"holds": "uploaded indexes", "version": 1})
        return lock

    def _give_folder(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _read(self, folder: Path) -> None:
        numbered = [path for path in folder.iterdir() if path.name.isdecimal()]
        found = []
        for path in sorted(numbered, key=lambda path: int(path.name)):
            if (path / JOB).is_file():
                found.append(Generation(path, Job.read(path)))
            else:
                _remove(path)
        if not found:
            with suppress(OSError):  # not empty
                folder.rmdir()
            return
        for generation in found:
            if generation.job.state == "ready" and generation.is_damaged():
                log.warning("the index %s is damaged or old, building it again", generation.name)
                with suppress(OSError):  # of a full disk it hears again
                    generation.save(state="building", starts=0)
        self._indexes[folder.name], superseded = _split(found)
        for generation in superseded:
            generation.discard()
            _remove(generation.folder)

    # Builds; all of the following runs in the event loop

    def _tell(self) -> None:
        self._wake.set()
        self._change.set()
        self._change = asyncio.Event()

    def _forget(self, generations: Iterable[Generation]) -> None:
        """Removes discarded generations from disk, the one that is being built after its process
        has ended: it would create folders again."""
        for generation in generations:
            if self._running is not None and self._running[0] is generation:
                self._running[1].kill()
            else:
                linger = self.limits.linger_s if generation.job.state == "ready" else 0.0
                self._remove_after(generation, linger)
        self._tell()

    def _remove_after(self, generation: Generation, seconds: float) -> None:
        if generation.folder in self._removals:
            return

        async def remove() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._closing.wait()
            await asyncio.to_thread(self._remove_generation, generation)
            del self._removals[generation.folder]

        self._removals[generation.folder] = asyncio.create_task(remove())

    def _remove_generation(self, generation: Generation) -> None:
        _remove(generation.folder)
        with self._guard, suppress(OSError):  # not empty: another generation of this name
            generation.folder.parent.rmdir()

    async def _supervise(self) -> None:
        while True:
            self._wake.clear()
            generation = self._next()
            if generation is None:
                await self._wake.wait()
                continue
            try:
                await self._attempt(generation)
            except Exception as error:
                log.exception("the index %s cannot be built", generation.name)
                reason = "it could not be built; the log of the server says why"
                await self._fail(generation, DISK_FULL if is_full(error) else reason)

    def _next(self) -> Generation | None:
        """The build that has waited longest."""
        with self._guard:
            waiting = [one for one in self._living() if one.job.state == "building"]
        return min(waiting, key=lambda one: one.number, default=None)

    async def _attempt(self, generation: Generation) -> None:
        starts = generation.job.starts
        if starts > self.limits.restarts:
            await self._fail(
                generation,
                f"the build ended early {starts} times, perhaps for want of memory: upload less "
                "at once",
            )
            return
        if not self._save(generation, starts=starts + 1):
            return
        try:
            message = await self._run(generation)
        except asyncio.CancelledError:
            with suppress(OSError):  # a full disk does not keep the store from stopping
                self._save(generation, starts=starts)
            if generation.discarded:
                self._remove_after(generation, 0.0)
            raise
        if generation.discarded:
            self._remove_after(generation, 0.0)
        elif "ready" in message:
            self._promote(generation, message["ready"])
        elif "failed" in message:
            await self._fail(generation, message["failed"])
        else:
            log.warning("the build of the index %s ended early", generation.name)
            generation.progress = Progress("waiting")
            self._tell()

    def _save(self, generation: Generation, **changes: Any) -> bool:
        """False if it was deleted meanwhile: then nothing is written."""
        with self._guard:
            if not generation.discarded:
                generation.save(**changes)
            return not generation.discarded

    async def _run(self, generation: Generation) -> Message:
        room = self.quota_bytes - self.used_bytes() + generation.expected_index_bytes

        def tell(progress: Progress) -> None:
            generation.progress = progress
            self._tell()

        try:
            process = await BuildProcess.start(generation.folder, room)
        except OSError:  # no process to be had now: as one that died at once
            log.exception("the build of the index %s cannot be started", generation.name)
            return {}
        self._running = (generation, process)
        tell(Progress("starting"))
        try:
            if generation.discarded:
                process.kill()
            async with asyncio.timeout(self.limits.build_s):
                return await process.follow(tell)
        except TimeoutError:
            minutes = round(self.limits.build_s / 60)
            return {"failed": f"the build took more than {minutes} minutes: upload less at once"}
        except asyncio.CancelledError:
            await process.end()
            raise
        finally:
            await process.close()
            self._running = None

    def _promote(self, generation: Generation, made: dict[str, Any]) -> None:
        rows = [Skipped(place, reason) for place, reason in made["bad_rows_named"]]
        if more := made["bad_rows"] - len(rows):
            rows.append(Skipped(f"{more:,} more rows", "not listed"))
        self._save(
            generation,
            state="ready",
            passages=made["passages"],
            index_bytes=made["bytes"],
            bad_rows=tuple(rows),
        )
        self._drop_superseded(generation.name)

    async def _fail(self, generation: Generation, reason: str) -> None:
        """Nothing of the documents or the index stays, only the reason."""
        await asyncio.to_thread(generation.clear)
        with suppress(OSError):  # where even the reason finds no space it is kept in memory
            self._save(generation, state="failed", error=reason)
        self._drop_superseded(generation.name)

    def _drop_superseded(self, name: str) -> None:
        with self._guard:
            kept, superseded = _split(self._indexes.get(name, []))
            if kept:
                self._indexes[name] = kept
            for generation in superseded:
                generation.discard()
        self._forget(superseded)


def _split(generations: Generations) -> tuple[Generations, Generations]:
    """The newest and the one in use, and those that nobody needs any more."""
    needed = {id(one) for one in (*generations[-1:], in_use(generations))}
    kept = [one for one in generations if id(one) in needed]
    return kept, [one for one in generations if id(one) not in needed]


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
