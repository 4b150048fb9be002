"""The second half of finding passages: one list for each question, and what is read of it.

Enters: scores and rows that an exact search found for the queries of some questions. Leaves: their
excerpts, the best first. Plain Python that takes milliseconds per question, so it runs in many
processes, each with the library open, while the search is on the device.

Shapes: S indexes, B questions, R queries per question, k hits per query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from skipqa.config import RetrieveConfig
from skipqa.knowledge import Library
from skipqa.knowledge.excerpt import excerpt_of, sentences_of, subject_of
from skipqa.knowledge.library import RankedHit, merge
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.vocabulary import Vocabulary
from skipqa.types import Hit

Excerpts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Searched:
    """What B questions found, and their queries without the zeros."""

    scores_SBRk: tuple[Tensor, ...]  # by index: a small one may have fewer than k passages
    rows_SBRk: tuple[Tensor, ...]
    ends: Tensor  # [B, S, R]: where the terms of each query end, in that order
    terms: Tensor
    weights: Tensor

    @staticmethod
    def of(scores: Sequence[Tensor], rows: Sequence[Tensor], queries_SBRN: Tensor) -> Searched:
        """`scores` and `rows` are [B, R, k] for each index."""
        queries_BSRN = queries_SBRN.transpose(0, 1)
        terms = queries_BSRN.nonzero()
        weights = queries_BSRN[terms.unbind(1)]
        ends = (queries_BSRN != 0).sum(-1).flatten().cumsum(0).view(queries_BSRN.shape[:3])
        return Searched(
            tuple(one.cpu() for one in scores),
            tuple(one.cpu() for one in rows),
            ends.cpu(),
            terms[:, 3].int().cpu(),
            weights.cpu(),
        )

    def parts(self, size: int) -> Iterator[Searched]:
        """Of `size` questions each, in their order."""
        count = len(self.ends)
        edges = [0, *self.ends[:, -1, -1].tolist()]
        for first, last in pairwise([*range(0, count, size), count]):
            some, these = slice(first, last), slice(edges[first], edges[last])
            yield Searched(
                tuple(one[some] for one in self.scores_SBRk),
                tuple(one[some] for one in self.rows_SBRk),
                self.ends[some] - edges[first],
                self.terms[these],
                self.weights[these],
            )

    def hits(self, b: int) -> list[list[list[Hit]]]:
        """Of a question, by index and query."""
        return [
            [
                [Hit(row, score) for row, score in zip(*pair, strict=True) if score > 0]
                for pair in zip(rows[b].tolist(), scores[b].tolist(), strict=True)
            ]
            for rows, scores in zip(self.rows_SBRk, self.scores_SBRk, strict=True)
        ]

    def query(self, b: int, source: int, region: int) -> dict[int, float]:
        _, indexes, regions = self.ends.shape
        place = (b * indexes + source) * regions + region
        end = int(self.ends.flatten()[place])
        start = int(self.ends.flatten()[place - 1]) if place else 0
        terms, weights = self.terms[start:end].tolist(), self.weights[start:end].tolist()
        return dict(zip(terms, weights, strict=True))


class Excerpter:
    """Merges the lists as the library merges them."""

    def __init__(self, library: Library, config: RetrieveConfig, most: int) -> None:
        self.library, self.config, self.most = library, config, most
        self.vocabulary = vocabulary_of(library)

    def __call__(self, searched: Searched) -> list[Excerpts]:
        sources = self.library.searched(self.library.weights(self.config.general_weight))
        found = []
        for b in range(len(searched.ends)):
            ranked = merge(sources, searched.hits(b), self.config.index_sharpness)[: self.most]
            found.append(tuple(self._read(ranked, searched, b)))
        return found

    def _read(self, ranked: Sequence[RankedHit], searched: Searched, b: int) -> Iterator[str]:
        passages = [self.library.passage(hit.row) for hit in ranked]
        texts = [t for one in passages for t in (subject_of(one.title), *sentences_of(one))]
        terms_of = terms_of_texts(self.vocabulary, texts)
        for hit, passage in zip(ranked, passages, strict=True):
            weights = searched.query(b, hit.source, hit.query)
            yield excerpt_of(passage, weights, terms_of.__getitem__, self.config.excerpt_words)


def open_excerpter(
    open_library: Callable[[], Library], config: RetrieveConfig, most: int
) -> Excerpter:
    return Excerpter(open_library(), config, most)


def open_excerpter_alone(
    open_library: Callable[[], Library], config: RetrieveConfig, most: int
) -> Excerpter:
    """In a process of several, which has one core. Where everything is done in one process this
    would change the last bits of whatever it computes later."""
    torch.set_num_threads(1)
    return open_excerpter(open_library, config, most)


def vocabulary_of(library: Library) -> Vocabulary:
    """That of the first index; lexical ones have the same."""
    encoder = next(iter(library.indexes.values())).encoder
    assert isinstance(encoder, LexicalEncoder)
    return encoder.vocabulary


def terms_of_texts(vocabulary: Vocabulary, texts: Sequence[str]) -> Mapping[str, Sequence[int]]:
    """Of each text, every term once."""
    unique = list(dict.fromkeys(texts))
    encoded = vocabulary.tokenizer.encode_batch(unique, add_special_tokens=False)
    return {
        text: np.unique(vocabulary.matched_as[np.array(one.ids, dtype=np.int64)]).tolist()
        for text, one in zip(unique, encoded, strict=True)
    }
