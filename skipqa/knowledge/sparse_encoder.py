"""Text to sparse vectors over the 30,522 terms: the protocol, and the lexical encoder.

Enters: passages, or a question. Leaves: `SparseRows`, or a `SparseVector`. An encoder does not
know which index holds its vectors; the index tells it how frequent each term is (`observe`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from skipqa.knowledge.vectors import SparseRows, sum_duplicates
from skipqa.knowledge.vocabulary import Vocabulary
from skipqa.types import Passage, SparseVector


class SparseEncoder(Protocol):
    """`ceiling` bounds every passage weight: the index quantizes [0, ceiling] to 8 bits.
    `encodes_whole_questions` says whether `encode_query` should get the question as it was asked;
    otherwise its content words make a better query."""

    ceiling: float
    encodes_whole_questions: bool

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def network(self) -> object:
        """What encodes a question. Encoders of several indexes may share one, which then runs once
        per question: its FLOPs count once."""

    def forget_question(self) -> None:
        """Drop what the network keeps of a question for the encoders that share it."""

    def config(self) -> dict[str, Any]:
        """What `EncoderReader` needs to rebuild it, in addition to the files that `save` writes."""

    def save(self, folder: Path) -> None: ...

    def encode_passages(self, passages: Sequence[Passage]) -> SparseRows: ...

    def encode_query(self, text: str) -> SparseVector: ...

    def query_flops(self, text: str) -> int:
        """FLOPs of the network on a question; a multiply-add counts as two."""

    def encode_terms(self, text: str) -> SparseVector:
        """A query from names of things, matched literally and never by a network."""

    def as_query(self, passage: SparseVector) -> SparseVector:
        """A stored passage vector, reweighted as a query for similar passages."""

    def observe(self, document_frequency: NDArray[np.int64], num_passages: int) -> None:
        """Sets how many passages of the index contain each term."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """BM25's k1 and b, the passage length they assume, and the weight of a title term."""

    k1: float = 1.2
    b: float = 0.5
    typical_length: float = 20.0
    title: float = 2.0


class LexicalEncoder:
    """BM25 as an inner product: a passage has the saturated term frequencies
    tf (k1 + 1) / (tf + k1 (1 - b + b length / typical_length)), a query has the idf.

    Passages do not include the idf, and `typical_length` is a constant, so that adding passages to
    an index never requires encoding the old ones again.
    """

    FILE = "tokenizer.json"
    encodes_whole_questions = False

    def __init__(self, vocabulary: Vocabulary, saturation: Saturation | None = None) -> None:
        self.vocabulary = vocabulary
        self.saturation = saturation or Saturation()
        self.ceiling = self.saturation.k1 + 1
        self.idf: NDArray[np.float32] = np.ones(len(vocabulary.tokens), np.float32)

    @staticmethod
    def default() -> LexicalEncoder:
        return LexicalEncoder(Vocabulary.default())

    @property
    def tokenizer(self) -> Tokenizer:
        return self.vocabulary.tokenizer

    @property
    def network(self) -> object:
        return self

    def forget_question(self) -> None:
        """Nothing is kept."""

    def config(self) -> dict[str, Any]:
        return {"kind": "lexical", **asdict(self.saturation)}

    def save(self, folder: Path) -> None:
        (folder / self.FILE).write_text(self.vocabulary.json, encoding="utf-8")

    def observe(self, document_frequency: NDArray[np.int64], num_passages: int) -> None:
        """idf = log(1 + (N - df + 1/2) / (df + 1/2)), which is never negative."""
        df = document_frequency[: len(self.idf)].astype(np.float64)
        idf = np.log1p((num_passages - df + 0.5) / (df + 0.5))
        idf[df == 0] = 0.0  # absent from all passages, so it cannot match
        self.idf = idf.astype(np.float32)

    def encode_passages(self, passages: Sequence[Passage]) -> SparseRows:
        """All passages in one pass: `keys` are (passage, term) pairs."""
        keys_text = self._keys([passage.text for passage in passages])
        keys_title = self._keys([passage.title for passage in passages])
        keys = np.concatenate([keys_text, keys_title])
        worth = np.ones(len(keys), np.float32)
        worth[len(keys_text) :] = self.saturation.title
        unique, inverse = np.unique(keys, return_inverse=True)
        frequency = np.bincount(inverse, weights=worth, minlength=len(unique))
        row, term = unique >> 16, unique & 0xFFFF
        length = np.bincount(row, weights=frequency, minlength=len(passages))
        k1, b = self.saturation.k1, self.saturation.b
        norm = k1 * (1 - b + b * length / self.saturation.typical_length)
        weights = frequency * (k1 + 1) / (frequency + norm[row])
        counts = np.bincount(row, minlength=len(passages))
        return SparseRows(
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            terms=term.astype(np.uint16),
            weights=weights.astype(np.float32),
        )

    def _keys(self, texts: list[str]) -> NDArray[np.int64]:
        """passage << 16 | term for every token that is matched, including repeats."""
        ids = [e.ids for e in self.tokenizer.encode_batch(texts, add_special_tokens=False)]
        lengths = np.array([len(row) for row in ids], dtype=np.int64)
        terms = np.fromiter((term for row in ids for term in row), np.int64, lengths.sum())
        rows = np.repeat(np.arange(len(ids), dtype=np.int64), lengths)
        terms = self.vocabulary.matched_as[terms].astype(np.int64)
        return (rows[terms >= 0] << 16) | terms[terms >= 0]

    def encode_query(self, text: str) -> SparseVector:
        return self.encode_terms(text)

    def query_flops(self, text: str) -> int:
        return 0

    def encode_terms(self, text: str) -> SparseVector:
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        terms = self.vocabulary.matched_as[np.array(ids, dtype=np.int64)]
        terms = np.unique(terms[terms >= 0])
        return sum_duplicates(terms, self.idf[terms])

    def as_query(self, passage: SparseVector) -> SparseVector:
        return sum_duplicates(passage.terms, passage.weights * self.idf[passage.terms])
