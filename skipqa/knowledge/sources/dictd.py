"""Reads a dictionary of the DICT server: `<name>.index` and `<name>.dict.dz`.

Enters: the two files. Leaves: the text of each entry, in the order of the file. A line of the index
is a headword, an offset and a length, the numbers in base 64; several headwords may name one entry.
The text is gzip. It does not know what an entry looks like inside.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

from skipqa.knowledge.sources.lines import UNREADABLE, read_lines
from skipqa.knowledge.sources.source import BadRow

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
VALUES = {digit: value for value, digit in enumerate(DIGITS)}
ABOUT_ITSELF = "00-"  # headwords of entries about the dictionary: title, licence
MAX_ENTRY_BYTES = 1 << 20


def read_entries(text: Path, index: Path) -> Iterator[str | BadRow]:
    places: set[tuple[int, int]] = set()
    for line in read_lines(index):
        if isinstance(line, BadRow):
            yield line
            continue
        number, row = line
        try:
            headword, offset, length = row.split("\t")[:3]
            if not headword.startswith(ABOUT_ITSELF):
                places.add((decoded(offset), decoded(length)))
        except (ValueError, KeyError):
            yield BadRow(f"{index.name}:{number}", "not a headword, an offset and a length")
    at = 0
    try:
        with gzip.open(text, "rb") as file:
            for at, size in sorted(places):
                if size > MAX_ENTRY_BYTES:
                    yield BadRow(f"{text.name}: byte {at}", f"an entry of {size:,} bytes")
                    continue
                file.seek(at)  # always forward: nothing is decompressed twice
                entry = file.read(size)
                if len(entry) < size:
                    yield BadRow(f"{text.name}: byte {at}", "the text ends before this entry does")
                    return
                try:
                    yield entry.decode("utf-8")
                except UnicodeDecodeError:
                    yield BadRow(f"{text.name}: byte {at}", "not UTF-8")
    except (*UNREADABLE, OverflowError) as error:
        yield BadRow(f"{text.name}: after byte {at}", f"reading ended: {error}")


def decoded(number: str) -> int:
    value = 0
    for digit in number:
        value = 64 * value + VALUES[digit]
    return value
