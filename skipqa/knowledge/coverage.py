"""How many passages of an index are about a name: its titles, counted.

Enters: the snapshot of an index, or several indexes. Leaves: a `Coverage` that counts the passages
with a name in their title, in microseconds. The titles of a corpus are read once and kept as sorted
hashes in the cache folder, under the hash of the corpus. Two names that differ in case, accents or
punctuation alone are the same. It does not know what is asked.
"""

from __future__ import annotations

import json
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skipqa import assets
from skipqa.knowledge.index.format import Damaged, id_hash
from skipqa.knowledge.index.snapshot import UNREADABLE, Snapshot

VERSION = 1  # of what a title's names are
_WORD = re.compile(r"[^\W_]+")
HASHES, COUNTS = "hashes.npy", "counts.npy"


@dataclass(frozen=True, slots=True)
class TitleCounts:
    """Of one corpus: ascending hashes of the names in its titles, and how often each occurs."""

    hashes_N: NDArray[np.uint64]
    counts_N: NDArray[np.uint32]

    def count(self, key: str) -> int:
        target = np.uint64(id_hash(key))
        place = int(np.searchsorted(self.hashes_N, target))
        found = place < len(self.hashes_N) and self.hashes_N[place] == target
        return int(self.counts_N[place]) if found else 0


@dataclass(frozen=True, slots=True)
class Coverage:
    titles: tuple[TitleCounts, ...]

    @staticmethod
    def of(indexes: Iterable[Snapshot]) -> Coverage:
        return Coverage(tuple(_counted(index) for index in indexes))

    def passages(self, name: str) -> int:
        """How many passages are titled with the name, over all indexes."""
        key = name_key(name)
        return sum(titles.count(key) for titles in self.titles) if key else 0

    def of_thing(self, names: Iterable[str]) -> int:
        """How many passages are titled with the best covered of a thing's names."""
        return max(map(self.passages, names), default=0)


def name_key(name: str) -> str:
    """Lower case, words and numbers only, without accents."""
    plain = name.casefold()
    if not plain.isascii():
        split = unicodedata.normalize("NFKD", plain)
        plain = "".join(c for c in split if not unicodedata.combining(c))
    return " ".join(_WORD.findall(plain))


def title_keys(title: str) -> set[str]:
    """Of "Luxembourg: Government > Flag" Luxembourg, of "bag, traveling bag" both names."""
    return {key for part in title.partition(":")[0].split(",") if (key := name_key(part))}


def _counted(index: Snapshot) -> TitleCounts:
    folder = assets.home() / "titles" / f"{index.manifest['corpus']['hash']}-{VERSION}"
    if folder.is_dir():
        try:
            return _opened(folder)
        except (OSError, EOFError, ValueError):  # damaged: count again
            shutil.rmtree(folder, ignore_errors=True)
    counts = Counter(id_hash(key) for title in _titles(index) for key in title_keys(title))
    hashes = sorted(counts)
    with assets.building(folder) as partial:
        np.save(partial / HASHES, np.array(hashes, np.uint64))
        np.save(partial / COUNTS, np.array([counts[one] for one in hashes], np.uint32))
    return _opened(folder)


def _opened(folder: Path) -> TitleCounts:
    """Mapped, not read. A plain array view: indexing np.memmap itself is slow."""
    hashes, counts = (
        np.load(folder / name, mmap_mode="r").view(np.ndarray) for name in (HASHES, COUNTS)
    )
    if hashes.dtype != np.uint64 or counts.dtype != np.uint32 or hashes.shape != counts.shape:
        raise ValueError("not what was written")
    return TitleCounts(hashes, counts)


def _titles(index: Snapshot) -> Iterator[str]:
    try:
        for segment in index.segments:
            for row in range(segment.rows):
                if segment.deleted is None or not segment.deleted[row]:
                    yield json.loads(segment.record(row))[1]
    except UNREADABLE as error:
        raise Damaged(index.folder, "its titles are unreadable") from error
