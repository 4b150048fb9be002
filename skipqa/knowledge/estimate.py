"""What a build will take, before it starts: passages, disk and time, from the corpus's size.

The constants were measured on the default corpus and two cores of a server CPU
(benchmarks/index_recall.py writes them again); a guess within a factor of two or so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skipqa.knowledge.sources.texts import ENDINGS

BUILT_IN_PASSAGES = {"wordnet": 117_816, "factbook": 38_788}
BYTES_PER_PASSAGE_READ = 300
COMPRESSION = {".bz2": 5.0, ".gz": 4.0}
INDEX_BYTES_PER_PASSAGE = 360  # vectors, lists, ids and text, lexical impacts
PASSAGES_PER_SECOND = 8_000


@dataclass(frozen=True, slots=True)
class Estimate:
    passages: int
    index_bytes: int
    seconds: float  # with lexical impacts; a SPLADE model sets its own pace


def estimate(specs: Sequence[str]) -> Estimate:
    passages = 0.0
    for spec in specs:
        path = Path(spec).expanduser()
        if spec in BUILT_IN_PASSAGES:
            passages += BUILT_IN_PASSAGES[spec]
        elif path.is_dir():
            files = (file for file in path.rglob("*") if file.suffix.lower() in ENDINGS)
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
