"""What a client may put into an index, and how it gets to disk.

Enters: file names that a client chose, and the bytes of the files. Leaves: a private folder of
documents, or nothing: an upload that fails or is given up is removed. No name leads out of that
folder. It does not know what becomes of the documents.
"""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from skipqa.errors import UserError
from skipqa.knowledge.sources import FILE_FORMATS, PDF, UNREAD
from skipqa.knowledge.sources.lines import COMPRESSED
from skipqa.serve.index_jobs import (
    DISK_FULL,
    IndexStatus,
    Skipped,
    expected_index_bytes,
    is_full,
)

MAX_DEPTH = 8  # folders and the file itself
MAX_PART_BYTES = 200  # of one folder or file name; file systems allow 255
MAX_PATH_BYTES = 512
MAX_SKIPPED_NAMED = 100
READ_BYTES = 1 << 20
ENDINGS = tuple(
    ending
    for known in FILE_FORMATS
    for ending in known.endings
    if not ending.endswith(tuple(COMPRESSED))
)
DRIVE = re.compile(r"[A-Za-z]:")
# Control characters, halves of characters, line breaks; and what turns the direction of writing
UNPRINTABLE = frozenset(("Cc", "Cs", "Zl", "Zp"))
DIRECTIONS = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class StoreError(UserError):
    """What is wrong with a request to the store; `code` is the same in every release."""

    code = "bad_index"


class BadFileName(StoreError):
    code = "bad_file_name"


class FileTooLarge(StoreError):
    code = "file_too_large"


class TooManyFiles(StoreError):
    code = "too_many_files"


class QuotaExceeded(StoreError):
    code = "quota_exceeded"


class DiskFull(StoreError):
    code = "disk_full"


class NothingToIndex(StoreError):
    code = "nothing_to_index"


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a store; the quota is apart. Times are in seconds."""

    files: int = 2_000  # of one index
    file_bytes: int = 32 << 20
    indexes: int = 100
    restarts: int = 3  # of a build that died
    build_s: float = 3_600.0
    linger_s: float = 60.0  # a replaced or deleted index stays on disk for who is reading it


class Owner(Protocol):
    """The store, as an upload sees it."""

    def check_room(self) -> None:
        """Raises `QuotaExceeded`."""

    def accept(self, upload: Upload) -> IndexStatus: ...

    def release(self, upload: Upload) -> None: ...


class Upload:
    """Documents of one index on their way to the disk, in a `with` block that ends by `commit`."""

    def __init__(self, name: str, folder: Path, limits: Limits, owner: Owner) -> None:
        self.name = name
        self.folder = folder
        self.num_documents = 0
        self.num_bytes = 0
        self._limits = limits
        self._owner = owner
        self._skipped: list[Skipped] = []
        self._num_skipped = 0
        self._files: dict[str, str] = {}  # by `_folded` name: the name
        self._folders: set[str] = set()  # `_folded`

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the documents unless they were committed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._owner.release(self)

    @property
    def documents(self) -> Path:
        return self.folder / "documents"

    @property
    def charged_bytes(self) -> int:
        return self.num_bytes + expected_index_bytes(self.num_bytes)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        more = self._num_skipped - len(self._skipped)
        rest = [Skipped(f"{more:,} more files", "not listed")] if more else []
        return (*self._skipped, *rest)

    def add(self, name: str, content: Iterable[bytes] | IO[bytes]) -> bool:
        """Writes one file. False if it was skipped; `skipped` has the reason."""
        path = safe_path(name)
        if reason := why_skipped(path) or self._why_taken(path):
            self._num_skipped += 1
            if len(self._skipped) < MAX_SKIPPED_NAMED:
                self._skipped.append(Skipped(str(path)[:MAX_PATH_BYTES], reason))
            return False
        if self.num_documents >= self._limits.files:
            raise TooManyFiles(f"more than {self._limits.files:,} files: make several indexes")
        target = self.documents / path
        before = self.num_bytes
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
                self._write(file, content, path)
        except BaseException as error:
            self.num_bytes = before
            with suppress(OSError):
                target.unlink()
            if is_full(error):
                raise DiskFull(DISK_FULL) from error
            raise
        self._files[_folded(path)] = str(path)
        self._folders.update(_folded(folder) for folder in path.parents)
        self.num_documents += 1
        return True

    def commit(self) -> IndexStatus:
        """Makes the index known and has it built. The name's earlier index stays in use until the
        new one is complete."""
        if not self.num_documents:
            first = next((f": {one.file}: {one.reason}" for one in self._skipped), "")
            raise NothingToIndex(f"no file that could be indexed{first}")
        try:
            return self._owner.accept(self)
        except OSError as error:
            if is_full(error):
                raise DiskFull(DISK_FULL) from error
            raise

    def _write(self, file: IO[bytes], content: Iterable[bytes] | IO[bytes], path: object) -> None:
        before, most = self.num_bytes, self._limits.file_bytes
        for block in _blocks(content):
            self.num_bytes += len(block)
            if self.num_bytes - before > most:
                raise FileTooLarge(f"{path} has more than {most >> 20} MB: split it")
            self._owner.check_room()
            file.write(block)

    def _why_taken(self, path: PurePosixPath) -> str:
        """Names that differ in case only would be one file on some disks."""
        if known := self._files.get(_folded(path)):
            return "given twice" if known == str(path) else f"{known} differs in case only"
        if _folded(path) in self._folders:
            return "also the name of a folder"
        over = (self._files.get(_folded(folder)) for folder in path.parents)
        return next((f"{known} is a file, not a folder" for known in over if known), "")


def safe_path(name: str) -> PurePosixPath:
    """The relative path that a client means by a file name."""
    shown = ascii(name[:80])
    if len(name) > 4 * MAX_PATH_BYTES:
        raise BadFileName(f"the file name {shown}… is too long")
    name = unicodedata.normalize("NFC", name).replace("\\", "/")
    if any(unicodedata.category(c) in UNPRINTABLE or c in DIRECTIONS for c in name):
        raise BadFileName(f"the file name {shown} has characters that cannot be printed")
    if DRIVE.match(name) or any(part in ("", ".", "..") for part in name.split("/")):
        raise BadFileName(f"{shown} is no file name within a folder")
    return PurePosixPath(name)


def why_skipped(path: PurePosixPath) -> str:
    """Empty if the file can be indexed."""
    name = path.name.lower()
    if any(part.startswith(".") for part in path.parts):
        return "hidden"
    if len(path.parts) > MAX_DEPTH:
        return f"more than {MAX_DEPTH} folders deep"
    lengths = [len(part.encode()) for part in path.parts]
    if max(lengths) > MAX_PART_BYTES or sum(lengths) + len(lengths) > MAX_PATH_BYTES:
        return "its name is too long"
    if name.endswith(PDF):
        return UNREAD[PDF]
    if name.endswith(tuple(COMPRESSED)):
        return "compressed, unpack it first"
    if not name.endswith(ENDINGS):
        return f"not one of {', '.join(ENDINGS)}"
    return ""


def _folded(path: PurePosixPath) -> str:
    return unicodedata.normalize("NFC", str(path).casefold())


def _blocks(content: Iterable[bytes] | IO[bytes]) -> Iterator[bytes]:
    """A file object is read in blocks, not in lines."""
    read = getattr(content, "read", None)
    return iter(content) if read is None else iter(lambda: read(READ_BYTES), b"")
