"""The process that builds one uploaded index: python -m skipqa.serve.build_index FOLDER.

Enters: the folder of a generation (see `index_jobs`), and on standard input a line when it should
stop; when standard input ends, so does the process. Leaves: the index, and lines of JSON on
standard output: `{"step", "done", "total"}` while it runs, in the end `{"ready": {...}}` or
`{"failed": "one line"}`. Killed at any moment it leaves what the next run goes on from. It does not
know the store.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from skipqa.errors import UserError
from skipqa.knowledge.default import size_on_disk
from skipqa.knowledge.estimate import estimate
from skipqa.knowledge.index import Execution, build
from skipqa.knowledge.sources import DOCUMENT_READERS, BadRow, Document, open_source
from skipqa.knowledge.sources.lines import file_fingerprint
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.serve.index_jobs import DISK_FULL, Place, is_full

NICENESS = 10  # questions come first
BATCH_DOCUMENTS = 64  # files may be large, and every batch reports
PART_ROWS = 1 << 12  # a killed build loses a few seconds
REPORT_S = 0.05
MAX_TITLE = 200  # characters; a title is repeated in every passage of its document
MAX_REASON = 300
Send = Callable[[dict[str, Any]], None]


class Stopped(Exception):
    """Asked to stop; the next run goes on."""


class UploadedDocuments:
    """All files of a folder as one corpus. A file that its reader fails on is one bad row, so that
    it does not spoil the others."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self._files = sorted(path for path in folder.rglob("*") if path.is_file())

    def expected_passages(self) -> int:
        """About how many: texts by their size, tables and dumps as the largest of them."""
        sizes = {path: path.stat().st_size for path in self._files}
        texts = [path for path in self._files if path.suffix.lower() in DOCUMENT_READERS]
        others = [path for path in self._files if path not in set(texts)]
        expected = float(estimate([str(self.folder)]).passages) if texts else 0.0
        if others:
            largest = max(others, key=lambda path: sizes[path])
            with suppress(Exception):  # the build says what is wrong with it
                passages = estimate([str(largest)]).passages
                expected += passages * sum(sizes[path] for path in others) / sizes[largest]
        return round(expected)

    def fingerprint(self) -> str:
        everything = "\n".join([self.name, *map(file_fingerprint, self._files)])
        return hashlib.sha256(everything.encode()).hexdigest()

    def read(self) -> Iterator[Document | BadRow]:
        for path in self._files:
            file = path.relative_to(self.folder).as_posix()
            try:
                for row in _rows(path):
                    yield self._placed(row, file)
            except Exception as error:  # whatever a stranger's file makes a reader do
                if is_full(error) or isinstance(error, MemoryError):
                    raise
                reason = str(error) if isinstance(error, UserError) else f"unreadable ({error!r})"
                yield BadRow(file, reason.replace(f"{self.folder}/", "")[:MAX_REASON])

    def _placed(self, row: Document | BadRow, file: str) -> Document | BadRow:
        """With the name of the index and the path of the file, which makes ids unique."""
        if isinstance(row, BadRow):
            return BadRow(_within(file, row.place), row.reason[:MAX_REASON])
        return replace(
            row,
            id=_within(f"{self.name}:{file}", row.id),
            title=row.title[:MAX_TITLE],
            source=self.name,
            lead=row.lead[:MAX_TITLE],
            subject=row.subject[:MAX_TITLE],
        )


def _rows(path: Path) -> Iterator[Document | BadRow]:
    """Of one file; ids and places are those within the file."""
    if (read_file := DOCUMENT_READERS.get(path.suffix.lower())) is not None:
        yield from read_file(path)
        return
    source = open_source(str(path))
    for row in source.read():
        if isinstance(row, BadRow):
            yield replace(row, place=row.place.removeprefix(path.name).strip(": "))
        else:
            yield replace(row, id=row.id.removeprefix(f"{source.name}:"))


def _within(file: str, part: str) -> str:
    return f"{file}:{part}" if part else file


def build_documents(
    place: Place, room: int, send: Send, stopping: threading.Event
) -> dict[str, Any]:
    """Builds the index; what is told of it. Its final size is at most `room` bytes."""
    source = UploadedDocuments(place.documents, place.name)
    expected = source.expected_passages()
    due = 0.0

    def report(step: str, done: int, total: int | None) -> None:
        nonlocal due
        if stopping.is_set():
            raise Stopped
        if total is None and time.monotonic() < due:
            return
        _check_room(place.index, 2 * room)  # the parts, and the index merged from them
        total = max(done, expected) if total is None else total
        send({"step": step, "done": done, "total": total})
        due = time.monotonic() + REPORT_S

    execution = Execution(report, BATCH_DOCUMENTS, PART_ROWS)
    outcome = build(place.index, [source], LexicalEncoder.default(), execution=execution)
    progress = outcome.progress
    return {
        "passages": outcome.passages,
        "bytes": _check_room(place.index, room),
        "bad_rows": progress.bad_rows,
        "bad_rows_named": progress.bad_rows_named,
    }


def _check_room(index: Path, room: int) -> int:
    size = size_on_disk(index)
    if size > room:
        raise UserError(
            "the index of these documents needs more space than is left of the quota: delete "
            "another one, or upload less"
        )
    return size


@contextmanager
def sole_builder(place: Place) -> Iterator[None]:
    """Waits for a process of a server that was killed, which is about to notice."""
    import fcntl  # POSIX only, as for every index that is written

    with (place.folder / "build.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        shutil.rmtree(place.scratch, ignore_errors=True)
        place.scratch.mkdir(mode=0o700)
        tempfile.tempdir = str(place.scratch)  # so that nothing stays in /tmp after a kill
        try:
            yield
        finally:
            shutil.rmtree(place.scratch, ignore_errors=True)


def _watch_input(stopping: threading.Event) -> None:
    """In a thread. Unbuffered, because a lock on `sys.stdin` would outlive the main thread."""
    while os.read(0, 64):
        stopping.set()
    os._exit(1)  # the server is gone


def _step_back() -> None:
    """Questions come first: for the processor, and where memory is short this process dies."""
    os.umask(0o077)
    os.nice(NICENESS)
    with suppress(OSError):  # Linux only
        Path("/proc/self/oom_score_adj").write_text("1000")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m skipqa.serve.build_index")
    parser.add_argument("folder", type=Path, help="folder of a generation")
    parser.add_argument("--room", type=int, required=True, help="most bytes of the index")
    given = parser.parse_args(arguments)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no report

    def send(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    _step_back()
    stopping = threading.Event()
    threading.Thread(target=_watch_input, args=(stopping,), daemon=True).start()
    place = Place(given.folder.absolute())
    try:
        with sole_builder(place):
            send({"ready": build_documents(place, given.room, send, stopping)})
    except Stopped:
        return 0
    except UserError as error:
        send({"failed": str(error).replace(f"{place.folder}/", "")})
    except MemoryError:
        send({"failed": "not enough memory for these documents: upload less at once"})
    except OSError as error:
        if not is_full(error):
            raise
        send({"failed": DISK_FULL})
    return 0


if __name__ == "__main__":
    sys.exit(main())
