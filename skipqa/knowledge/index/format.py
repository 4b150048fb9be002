"""The index on disk: immutable segments, and one manifest that names the current ones.

    manifest.json               the commit point, replaced atomically; has the settings, a hash of
                                the corpus, and the size and sha256 of every file below
    encoder-<n>/                what the sparse encoder needs to be loaded again
    segments/<name>/            raw little-endian arrays, memory-mapped, never changed
    segments/<name>/deleted-<n> one bit per row, if rows were deleted
    building/                   finished parts of an unfinished build (see `parts`)

Files that the manifest does not name are never read, so a killed writer leaves the old index.
Legend: N rows of a segment, P postings, V terms, L rows in lists (L < P if lists are cut off).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skipqa.errors import UserError
from skipqa.knowledge.vectors import NUM_TERMS

VERSION = 1
MANIFEST = "manifest.json"
SEGMENTS = "segments"
BUILDING = "building"
MAX_RECORD = 1 << 26  # bytes; a passage of 100 tokens with its title is far smaller

DTYPES: Mapping[str, str] = {
    "forward.offsets": "<i8",  # [N + 1] start of each row's postings
    "forward.terms": "<u2",  # [P] ascending within a row
    "forward.impacts": "<u1",  # [P] weight * 255 / ceiling, at least 1
    "lists.offsets": "<i8",  # [V + 1] start of each term's list
    "lists.rows": "<u4",  # [L] highest impact first, then ascending
    "runs.offsets": "<i8",  # [V + 1] start of each term's runs
    "runs.impacts": "<u1",  # middle of each run of similar impacts in a list, descending
    "runs.lengths": "<u4",
    "frequencies": "<i8",  # [V] rows that contain the term
    "texts.offsets": "<i8",  # [N + 1] bytes
    "texts.json": "<u1",  # [id, title, text, source, start, end] of each row
    "ids.hashes": "<u8",  # [N] ascending in a segment, in row order in a part
    "ids.rows": "<u4",  # [N] the row of each hash
    "embeddings": "<f2",  # [N, d], optional
}


class Damaged(UserError):
    """Files that differ from what was written."""

    def __init__(self, folder: Path, what: str) -> None:
        super().__init__(
            f"the index at {folder} is damaged ({what}): build it again with "
            f"`skipqa index build {folder} <corpus>`"
        )


@dataclass(frozen=True)
class Segment:
    """An immutable set of rows. Arrays are memory-mapped on first use; only sizes are checked."""

    folder: Path
    rows: int
    files: Mapping[str, Mapping[str, Any]]
    deleted_file: str | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    def array(self, name: str) -> NDArray[Any]:
        path, dtype = self.folder / name, np.dtype(DTYPES[name])
        if path.stat().st_size == 0:
            return np.zeros(0, dtype)
        # A plain array view: indexing np.memmap itself is slow.
        return np.memmap(path, dtype, mode="r").view(np.ndarray)

    @cached_property
    def forward(self) -> tuple[NDArray[np.int64], NDArray[np.uint16], NDArray[np.uint8]]:
        return tuple(map(self.array, ("forward.offsets", "forward.terms", "forward.impacts")))  # type: ignore[return-value]

    @cached_property
    def lists(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        return self.array("lists.offsets"), self.array("lists.rows")

    @cached_property
    def runs(self) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint32]]:
        return tuple(map(self.array, ("runs.offsets", "runs.impacts", "runs.lengths")))  # type: ignore[return-value]

    @cached_property
    def texts(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        return self.array("texts.offsets"), self.array("texts.json")

    @cached_property
    def ids(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        return self.array("ids.hashes"), self.array("ids.rows")

    @cached_property
    def embeddings(self) -> NDArray[np.float16] | None:
        return self.array("embeddings").reshape(self.rows, -1) if self.has_embeddings else None

    @property
    def has_embeddings(self) -> bool:
        return "embeddings" in self.files

    @cached_property
    def deleted(self) -> NDArray[np.bool_] | None:
        """[N], or None if nothing was deleted."""
        if self.deleted_file is None:
            return None
        bits = np.fromfile(self.folder / self.deleted_file, np.uint8)
        return np.unpackbits(bits, count=self.rows).astype(bool)

    def record(self, row: int) -> bytes:
        offsets, data = self.texts
        start, stop = int(offsets[row]), int(offsets[row + 1])
        if not 0 <= start <= stop <= min(len(data), start + MAX_RECORD):
            raise IndexError(f"the text of row {row} would have {stop - start} bytes")
        return data[start:stop].tobytes()


def find(segments: Sequence[Segment], passage_id: str) -> tuple[int, int] | None:
    """(segment number, row) of a passage that was not deleted."""
    target = np.uint64(id_hash(passage_id))
    for number, segment in enumerate(segments):
        hashes, rows = segment.ids
        low = np.searchsorted(hashes, target, "left")
        high = np.searchsorted(hashes, target, "right")
        for row in rows[low:high].tolist():
            alive = segment.deleted is None or not segment.deleted[row]
            if alive and json.loads(segment.record(row))[0] == passage_id:
                return number, row
    return None


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and sha256 of each file, after flushing it to disk."""
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found[path.name] = {"bytes": path.stat().st_size, "sha256": digest}
    sync_folder(folder)
    return found


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"no index at {folder}: build one with `skipqa index build {folder} <corpus>`"
        ) from None
    try:
        stored = json.loads(raw)
        manifest, version = stored["manifest"], stored["version"]
    except (ValueError, KeyError, TypeError):
        raise Damaged(folder, f"{MANIFEST} cannot be parsed") from None
    if version != VERSION:
        raise UserError(
            f"the index at {folder} has format {version}, this release reads {VERSION}: build it "
            f"again with `skipqa index build {folder} <corpus>`"
        )
    if raw != _sealed(manifest):  # also catches changed whitespace
        raise Damaged(folder, f"{MANIFEST} fails its checksum")
    return manifest


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Commits: readers see either the old index or the new one."""
    write_atomically(folder / MANIFEST, _sealed(manifest))


def _sealed(manifest: Mapping[str, Any]) -> bytes:
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    sealed = {"version": VERSION, "sha256": digest, "manifest": manifest}
    return (json.dumps(sealed, sort_keys=True, indent=1) + "\n").encode()


def write_atomically(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_segments(folder: Path, manifest: Mapping[str, Any]) -> list[Segment]:
    """Maps nothing yet, but detects files that are missing or have the wrong size."""
    segments = []
    for entry in manifest["segments"]:
        segment_folder = folder / SEGMENTS / entry["name"]
        for name, expected in entry["files"].items():
            try:
                size = (segment_folder / name).stat().st_size
            except OSError:
                raise Damaged(folder, f"{entry['name']}/{name} is missing") from None
            if size != expected["bytes"]:
                raise Damaged(
                    folder, f"{entry['name']}/{name} has {size:,} of {expected['bytes']:,} bytes"
                )
        segments.append(
            Segment(segment_folder, entry["rows"], entry["files"], entry.get("deleted"))
        )
    return segments


def verify(folder: Path) -> list[str]:
    """Reads every file of the index and checks its sha256; returns a message per fault."""
    manifest = read_manifest(folder)
    faults = []
    for place, files in _all_files(folder, manifest):
        for name, expected in files.items():
            path = place / name
            label = path.relative_to(folder)
            if not path.is_file():
                faults.append(f"{label} is missing")
            elif path.stat().st_size != expected["bytes"]:
                faults.append(f"{label} has {path.stat().st_size} of {expected['bytes']} bytes")
            else:
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
                        faults.append(f"{label} fails its sha256 check")
    return faults


def _all_files(
    folder: Path, manifest: Mapping[str, Any]
) -> Iterator[tuple[Path, Mapping[str, Mapping[str, Any]]]]:
    yield folder / manifest["encoder"]["folder"], manifest["encoder"]["files"]
    for entry in manifest["segments"]:
        yield folder / SEGMENTS / entry["name"], entry["files"]


def remove_unnamed(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Deletes files that the manifest does not name: replaced or partly written ones."""
    named = {entry["name"]: set(entry["files"]) for entry in manifest["segments"]}
    for path in (folder / SEGMENTS).glob("*"):
        if path.name not in named:
            shutil.rmtree(path, ignore_errors=True)
            continue
        for file in path.iterdir():
            if file.name not in named[path.name]:
                file.unlink(missing_ok=True)
    for path in folder.glob("encoder-*"):
        if path.name != manifest["encoder"]["folder"]:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Allows one writer at a time; the lock is released when the process ends, even if killed."""
    import fcntl  # POSIX only, and needed only for writing

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is writing to the index at {folder}") from None
        yield


def id_hash(passage_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(passage_id.encode(), digest_size=8).digest(), "little")


def content_hash(record: bytes) -> int:
    """What one passage adds to the corpus hash. That is a sum modulo 2^128, so it does not depend
    on the order of passages, and a deletion subtracts."""
    return int.from_bytes(hashlib.blake2b(record, digest_size=16).digest(), "little")


CONTENT_MODULUS = 1 << 128
assert np.iinfo(np.uint16).max > NUM_TERMS
