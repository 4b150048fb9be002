"""Many sparse vectors as one block, in compressed sparse row (CSR) form.

Legend: N vectors, P postings (non-zero entries of all vectors).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skipqa.types import SparseVector

NUM_TERMS = 30_522  # the BERT vocabulary, which is also SPLADE's


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Row i holds `terms[offsets[i]:offsets[i + 1]]`, ascending and unique, and its weights."""

    offsets: NDArray[np.int64]  # [N + 1]
    terms: NDArray[np.uint16]  # [P]
    weights: NDArray[np.float32]  # [P], positive

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> SparseVector:
        part = slice(self.offsets[row], self.offsets[row + 1])
        return SparseVector(self.terms[part].astype(np.int32), self.weights[part])

    @staticmethod
    def stack(vectors: Sequence[SparseVector]) -> SparseRows:
        if len(vectors) == 1:  # the common case of one question, made fast
            (only,) = vectors
            ends = np.array([0, len(only.terms)], np.int64)
            weights = only.weights.astype(np.float32, copy=False)
            return SparseRows(ends, only.terms.astype(np.uint16), weights)
        lengths = [0, *(len(vector) for vector in vectors)]
        return SparseRows(
            offsets=np.cumsum(lengths, dtype=np.int64),
            terms=_concatenate([vector.terms for vector in vectors], np.uint16),
            weights=_concatenate([vector.weights for vector in vectors], np.float32),
        )


def sum_duplicates(terms: NDArray[np.int32], weights: NDArray[np.float32]) -> SparseVector:
    """A vector from terms in any order: repeated terms are added, non-positive sums dropped."""
    unique, inverse = np.unique(terms, return_inverse=True)
    sums = np.bincount(inverse, weights=weights, minlength=len(unique)).astype(np.float32)
    positive = sums > 0
    return SparseVector(unique[positive].astype(np.int32), sums[positive])


def spans(starts: NDArray[np.integer], lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Every position of the ranges [start, start + length), concatenated."""
    before = np.cumsum(lengths) - lengths
    shift = np.repeat(starts.astype(np.int64) - before, lengths)
    shift += np.arange(len(shift))
    return shift


def _concatenate(parts: Sequence[NDArray], dtype: type) -> NDArray:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)
