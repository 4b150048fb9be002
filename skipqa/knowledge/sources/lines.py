"""Lines of a text file, compressed or not. A bad line is reported and skipped."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from skipqa.errors import UserError
from skipqa.files import parse_json
from skipqa.knowledge.sources.source import BadRow

UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)  # damaged or cut off
COMPRESSED: Mapping[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
MAX_LINE_BYTES = 1 << 20  # longer than any document worth indexing, but small in memory


def open_binary(path: Path) -> IO[bytes]:
    try:
        opened: IO[bytes] = COMPRESSED.get(path.suffix.lower(), open)(path, "rb")
        return opened
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def read_lines(path: Path, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, str] | BadRow]:
    """(line number from 1, text without its line break) of each line that is valid UTF-8."""
    with open_binary(path) as file:
        number = 0
        while True:
            number += 1
            place = f"{path.name}:{number}"
            try:
                line = file.readline(max_bytes + 1)
                size = len(line)
                if too_long := size > max_bytes and not line.endswith(b"\n"):
                    while (rest := file.readline(max_bytes)) and not rest.endswith(b"\n"):
                        size += len(rest)
            except UNREADABLE as error:
                yield BadRow(place, f"reading ended: {error}")
                return
            if not line:
                return
            if too_long:
                yield BadRow(place, f"a line of more than {max_bytes >> 20} MB ({size:,} bytes)")
                continue
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                yield BadRow(place, not_utf8(error))
                continue
            yield number, text.rstrip("\r\n")


def not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8 (byte {error.start}), save it as UTF-8"


def parse_line(text: str, place: str) -> Any | BadRow:
    """The value of one line of JSON Lines, or what is wrong with it."""
    try:
        return parse_json(text)
    except UserError as error:
        return BadRow(place, str(error))


def file_fingerprint(path: Path) -> str:
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
