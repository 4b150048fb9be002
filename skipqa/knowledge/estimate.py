"""Estimates the passages, disk space and time of a build from the size of the corpus.

The constants were measured on the default corpus with two cores of a server CPU
(benchmarks/index_recall.py measures them again). Expect an error of up to a factor of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skipqa.knowledge.sources import BUILT_IN, DOCUMENT_READERS

BYTES_PER_PASSAGE_READ = 300
COMPRESSION = {".bz2": 5.0, ".gz": 4.0}
INDEX_BYTES_PER_PASSAGE = 360  # vectors, lists, ids and text, with the lexical encoder
PASSAGES_PER_SECOND = 8_000


@dataclass(frozen=True, slots=True)
class Estimate:
    passages: int
    index_bytes: int
    seconds: float  # with the lexical encoder; SPLADE is far slower


def estimate(specs: Sequence[str]) -> Estimate:
    passages = 0.0
    for spec in specs:
        path = Path(spec).expanduser()
        if spec in BUILT_IN:
            passages += BUILT_IN[spec].passages
        elif path.is_dir():
            files = (file for file in path.rglob("*") if file.suffix.lower() in DOCUMENT_READERS)
            size = sum(file.stat().st_size for file in files if file.is_file())
            passages += size / BYTES_PER_PASSAGE_READ
        elif path.is_file():
            size = path.stat().st_size
            passages += size * COMPRESSION.get(path.suffix, 1.0) / BYTES_PER_PASSAGE_READ
    return Estimate(
        passages=max(1, round(passages)),
        index_bytes=round(passages * INDEX_BYTES_PER_PASSAGE),
        seconds=passages / PASSAGES_PER_SECOND,
    )
