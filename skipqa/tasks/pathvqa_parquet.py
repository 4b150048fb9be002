"""PathVQA's Parquet files, as on the Hugging Face Hub, in the layout that `pathvqa.py` reads.

Enters: a folder of Parquet files with the columns image, question and answer, the photos inside.
Leaves: {train,val,test}.jsonl and images/SPLIT/. The bytes of a photo are written as they are, and
nothing is decoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from skipqa.errors import MissingExtra, UserError
from skipqa.files import check_object, write_jsonl
from skipqa.tasks.pathvqa import FIELDS, PATHVQA

SPLITS = {"train": "train", "validation": "val", "val": "val", "test": "test"}
ROWS_AT_A_TIME = 64  # each holds a photo

Progress = Callable[[str, int, int | None], None]  # (what, done, of how many)


def convert(
    source: Path, folder: Path, progress: Progress = lambda what, done, total: None
) -> dict[str, int]:
    """How many questions each split has. A file is of the split that its own name or that of its
    folder begins with: `test-00000-of-00003.parquet`, `test/0000.parquet`."""
    files: dict[str, list[Path]] = {}
    for path in sorted(source.rglob("*.parquet")):
        if (split := _split(path)) is not None:
            files.setdefault(split, []).append(path)
    if not files:
        raise UserError(f"{source} has no Parquet files of train, validation or test")
    counts = {}
    for split, paths in files.items():
        photos = _Photos(PATHVQA.images(folder, split) / split, split)
        rows: list[dict[str, Any]] = []
        for number, path in enumerate(paths):
            progress(split, number, len(paths))
            rows += _rows(path, photos)
        progress(split, len(paths), len(paths))
        write_jsonl(PATHVQA.files(folder, split)[0], rows)  # last: a kill leaves no half of a split
        counts[split] = len(rows)
    return counts


def _split(path: Path) -> str | None:
    named = (name.partition("-")[0] for name in (path.stem, path.parent.name))
    return next((SPLITS[name] for name in named if name in SPLITS), None)


class _Photos:
    """Writes each photo once, however many questions are about it, and names it."""

    def __init__(self, folder: Path, split: str) -> None:
        self.folder, self.split = folder, split
        self._names: dict[bytes, str] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def name(self, data: bytes) -> str:
        digest = hashlib.sha256(data).digest()
        if digest not in self._names:
            self._names[digest] = f"{self.split}_{len(self._names):04d}"
            (self.folder / f"{self._names[digest]}.jpg").write_bytes(data)
        return self._names[digest]


def _rows(path: Path, photos: _Photos) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtra("reading Parquet files", "parquet") from None
    try:
        file = parquet.ParquetFile(path)
        for column in FIELDS:
            if column not in file.schema_arrow.names:
                raise UserError(f"{path} lacks the column {column!r}")
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=list(FIELDS)):
            for row in batch.to_pylist():
                named = {**row, "image": photos.name(_bytes(path, row["image"]))}
                yield check_object(str(path), named, FIELDS)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} is not a Parquet file that can be read: {reason}") from None


def _bytes(path: Path, image: Any) -> bytes:
    data = image.get("bytes") if isinstance(image, dict) else image
    if not isinstance(data, bytes):
        raise UserError(f"{path}: the column 'image' must hold the photos themselves")
    return data
