"""Passages as tensors, and what a lexical search finds among them.

Enters: a library. Leaves: the stored impacts of all its passages, exact scores of queries against
them, and a `Search`: the k best rows of each query, by the indexes' own engines on a CPU, by exact
scores of all passages on a GPU, where a million of them take milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from skipqa.knowledge import Library
from skipqa.knowledge.index.parts import LEVELS
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.vectors import NUM_TERMS
from skipqa.training.run import Counted
from skipqa.types import Passage, SparseVector

BLOCK = 1 << 15  # passages scored at once: all of them would be the largest thing in memory
REPORTED = 512  # queries between two reports


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths, one after another."""

    values: Tensor
    ends: Tensor  # [rows], where each row ends

    @staticmethod
    def of(rows: Sequence[Sequence[int]]) -> Ragged:
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
        flat = [value for row in rows for value in row]
        return Ragged(torch.tensor(flat, dtype=torch.int16), lengths.cumsum(0).int())

    def places(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Where the values of `rows` stand, and where each of them begins among those."""
        ends = self.ends[rows].long()
        starts = torch.where(rows > 0, self.ends[(rows - 1).clamp(min=0)].long(), 0)
        lengths = ends - starts
        first = lengths.cumsum(0) - lengths
        within = torch.arange(int(lengths.sum()), device=rows.device)
        return within + (starts - first).repeat_interleave(lengths), first

    def padded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, longest] and the mask of what is there."""
        places, first = self.places(rows)
        lengths = torch.diff(first, append=torch.tensor([len(places)], device=rows.device))
        mask = torch.arange(int(lengths.max()), device=rows.device) < lengths[:, None]
        found = torch.zeros(mask.shape, dtype=torch.long, device=rows.device)
        found[mask] = self.values[places].long()
        return found, mask

    def to(self, device: torch.device) -> Ragged:
        return Ragged(self.values.to(device), self.ends.to(device))


@dataclass(frozen=True, slots=True)
class Stored:
    """P passages."""

    terms: Ragged  # [P]
    impacts: Tensor  # in the order of the terms' values

    @staticmethod
    def of(library: Library) -> Stored:
        """The passages of all indexes, in the library's order."""
        segments = [s for index in library.indexes.values() for s in index.segments]
        forward = [segment.forward for segment in segments]
        lengths = np.concatenate([np.diff(offsets) for offsets, _, _ in forward])
        terms = np.concatenate([terms for _, terms, _ in forward]).astype(np.int16)
        impacts = np.concatenate([impacts for _, _, impacts in forward])
        ends = torch.from_numpy(np.cumsum(lengths, dtype=np.int32))
        return Stored(Ragged(torch.from_numpy(terms), ends), torch.from_numpy(impacts))

    def __len__(self) -> int:
        return len(self.terms.ends)

    def to(self, device: torch.device) -> Stored:
        return Stored(self.terms.to(device), self.impacts.to(device))

    def scores(self, queries_BN: Tensor, rows: Tensor) -> Tensor:
        """Inner products [B, rows]."""
        places, first = self.terms.places(rows)
        by_row = F.embedding_bag(
            self.terms.values[places].long(),
            queries_BN.T.contiguous(),
            first,
            mode="sum",
            per_sample_weights=self.impacts[places].to(queries_BN.dtype) / LEVELS,
        )
        return by_row.T

    def best(self, queries_BN: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Scores and rows of the k best of all, [B, k] each, or as many as there are."""
        every = torch.arange(len(self), device=queries_BN.device)
        scores = torch.zeros(len(queries_BN), 0, device=queries_BN.device)
        rows = torch.zeros(len(queries_BN), 0, dtype=torch.long, device=queries_BN.device)
        for block in every.split(BLOCK):
            scores = torch.cat((scores, self.scores(queries_BN, block)), dim=1)
            rows = torch.cat((rows, block.expand(len(queries_BN), -1)), dim=1)
            kept = scores.topk(min(k, scores.shape[1]))
            scores, rows = kept.values, rows.gather(1, kept.indices)
        return scores, rows


class Search(Protocol):
    at_once: int  # queries

    def __call__(self, queries: Sequence[SparseVector], k: int) -> list[list[int]]:
        """The library's rows of the k best passages of each query, the best first."""


class IndexSearch:
    """By the engine of each index; one idf makes their scores comparable."""

    at_once = 8  # as region queries are

    def __init__(self, library: Library) -> None:
        self.library = library

    def __call__(self, queries: Sequence[SparseVector], k: int) -> list[list[int]]:
        found: list[list[tuple[float, int]]] = [[] for _ in queries]
        bases = self.library.bases.tolist()
        for index, base in zip(self.library.indexes.values(), bases, strict=False):
            for best, hits in zip(found, index.search(queries, k), strict=True):
                best += ((-hit.score, base + hit.row) for hit in hits)
        return [[row for _, row in sorted(best)[:k]] for best in found]


class ExactSearch:
    """By the scores of all passages, where they lie on a GPU."""

    at_once = 256

    def __init__(self, stored: Stored) -> None:
        self.stored = stored

    def __call__(self, queries: Sequence[SparseVector], k: int) -> list[list[int]]:
        dense = np.zeros((len(queries), NUM_TERMS), dtype=np.float32)
        for row, query in zip(dense, queries, strict=True):
            row[query.terms] = query.weights
        scores, rows = self.stored.best(torch.from_numpy(dense).to(self.stored.impacts.device), k)
        kept = (scores > 0).sum(1).tolist()
        return [row[:count] for row, count in zip(rows.tolist(), kept, strict=True)]


@dataclass(frozen=True, slots=True)
class Corpus:
    """All passages of a library, encoded as if they were in one index: a term has one idf."""

    library: Library
    passages: Sequence[Passage]  # by row
    encoder: LexicalEncoder
    search: Search

    @staticmethod
    def of(library: Library, device: torch.device) -> Corpus:
        passages = [library.passage(row) for row in range(len(library))]
        on_gpu = device.type == "cuda"
        search = ExactSearch(Stored.of(library).to(device)) if on_gpu else IndexSearch(library)
        return Corpus(library, passages, common_encoder(library), search)

    def find(self, texts: Sequence[str], k: int, counted: Counted) -> Iterator[list[int]]:
        """The rows that each text finds, matched literally."""
        reported = 0
        for start in range(0, len(texts), self.search.at_once):
            some = texts[start : start + self.search.at_once]
            yield from self.search([self.encoder.encode_terms(text) for text in some], k)
            if start >= reported:
                counted(start, len(texts))
                reported = start + REPORTED


def common_encoder(library: Library) -> LexicalEncoder:
    """That of the first index, with the term frequencies of all."""
    indexes = list(library.indexes.values())
    first = indexes[0].encoder
    assert isinstance(first, LexicalEncoder)
    common = LexicalEncoder(first.vocabulary, first.saturation)
    frequency = np.sum([index.document_frequency() for index in indexes], axis=0)
    common.observe(frequency, int(library.bases[-1]))
    return common
