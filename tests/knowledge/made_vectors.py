"""Indexes of given vectors without text, for tests of search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from skipqa.knowledge.index import Index, Settings, build
from skipqa.knowledge.sources import BadRow, Document
from skipqa.knowledge.vectors import SparseRows
from skipqa.types import Passage, SparseVector


class Numbered:
    """A source of numbered documents without text."""

    name = "numbered"

    def __init__(self, count: int) -> None:
        self.count = count

    def fingerprint(self) -> str:
        return str(self.count)

    def read(self) -> Iterator[Document | BadRow]:
        for number in range(self.count):
            yield Document(str(number), "", f"passage {number}", self.name)


class Given:
    """An encoder that returns given vectors; the id of a passage is its row."""

    ceiling = 4.0

    def __init__(self, vectors: Sequence[SparseVector]) -> None:
        self.vectors = vectors
        self.tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))

    def config(self) -> dict[str, Any]:
        return {"kind": "given"}

    def save(self, folder: Path) -> None:
        pass

    def encode_passages(self, passages: Sequence[Passage]) -> SparseRows:
        return SparseRows.stack([self.vectors[int(p.id)] for p in passages])


def build_vectors(folder: Path, vectors: Sequence[SparseVector], **settings: Any) -> Index:
    build(folder, [Numbered(len(vectors))], Given(vectors), Settings(**settings))  # type: ignore[arg-type]
    return Index.open(folder)


def random_vectors(
    count: int, terms: int, seed: int, vocabulary: int = 2_000
) -> list[SparseVector]:
    """Clustered: half of a vector's terms come from one of twenty topics."""
    rng = np.random.default_rng(seed)
    topics = np.random.default_rng(0).integers(0, vocabulary, (20, terms))
    made = []
    for _ in range(count):
        own = rng.integers(0, vocabulary, terms // 2)
        topical = rng.choice(topics[rng.integers(20)], terms - terms // 2, replace=False)
        chosen = np.unique(np.concatenate([own, topical])).astype(np.int32)
        weights = rng.exponential(0.7, len(chosen)).clip(0.05, 4.0).astype(np.float32)
        made.append(SparseVector(chosen, weights))
    return made
