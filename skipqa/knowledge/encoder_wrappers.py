"""Encoders around another encoder: the same vectors, computed with less work or elsewhere.

Enters: a sparse encoder. Leaves: a sparse encoder with the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from skipqa.knowledge.sparse_encoder import SparseEncoder
from skipqa.knowledge.vectors import SparseRows
from skipqa.types import Passage, SparseVector


class EncoderWrapper:
    """Passes every call on to `inner`; a subclass overrides the ones it does differently."""

    def __init__(self, inner: SparseEncoder) -> None:
        self.inner = inner
        self.ceiling = inner.ceiling
        self.encodes_whole_questions = inner.encodes_whole_questions

    @property
    def tokenizer(self) -> Tokenizer:
        return self.inner.tokenizer

    @property
    def network(self) -> object:
        return self.inner.network

    def forget_question(self) -> None:
        self.inner.forget_question()

    def config(self) -> dict[str, Any]:
        return self.inner.config()

    def save(self, folder: Path) -> None:
        self.inner.save(folder)

    def encode_passages(self, passages: Sequence[Passage]) -> SparseRows:
        return self.inner.encode_passages(passages)

    def encode_query(self, text: str) -> SparseVector:
        return self.inner.encode_query(text)

    def query_flops(self, text: str) -> int:
        return self.inner.query_flops(text)

    def encode_terms(self, text: str) -> SparseVector:
        return self.inner.encode_terms(text)

    def as_query(self, passage: SparseVector) -> SparseVector:
        return self.inner.as_query(passage)

    def observe(self, document_frequency: NDArray[np.int64], num_passages: int) -> None:
        self.inner.observe(document_frequency, num_passages)


class CachedQueries(EncoderWrapper):
    """Keeps the last `size` encoded queries: useful where a question is asked about many images.
    `inner` must have observed the index already, because its term frequencies set the weights."""

    def __init__(self, inner: SparseEncoder, size: int) -> None:
        super().__init__(inner)
        self._encode = lru_cache(size)(inner.encode_query)

    def encode_query(self, text: str) -> SparseVector:
        return self._encode(text)
