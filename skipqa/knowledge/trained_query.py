"""Lexical passages, queries weighted by a trained network (a small SPLADE).

For each term the network predicts a factor on its idf, also for terms that are not in the question;
the idf comes from the index. Passages are encoded without a network, so the trained queries work
on any lexical index, and one run of the network serves all indexes that a question is asked of.
Heavy imports happen on use: reading an index needs no torch.
"""

from __future__ import annotations

import shutil
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skipqa.knowledge.sparse_encoder import LexicalEncoder, Saturation
from skipqa.knowledge.vectors import NUM_TERMS
from skipqa.knowledge.vocabulary import Vocabulary, cut_pieces
from skipqa.types import SparseVector

MAX_TERMS = 64  # per question; search reads one postings list for each
MAX_TOKENS = 128


class QueryNetwork:
    """A question's word pieces to a factor on the idf of every term, with the trained weights in
    the file `delta` (`sparse_query.safetensors`), which are relative to the published text encoder.

    The factors of the last question are kept until `forget`: the encoders of several indexes ask
    for them one after another.
    """

    def __init__(self, delta: Path) -> None:
        self.delta = delta
        self._last = lru_cache(maxsize=1)(self._run)

    def factors(self, pieces: tuple[int, ...], vocabulary: Vocabulary) -> NDArray[np.float32]:
        return self._last(pieces, vocabulary)

    def forget(self) -> None:
        self._last.cache_clear()

    def flops(self, num_pieces: int) -> int:
        from skipqa.backbones.networks import sparse_query

        return sparse_query.flops(self.module, num_pieces)

    @cached_property
    def module(self) -> Any:
        from skipqa.backbones.networks import sparse_query

        return sparse_query.trained(self.delta)

    def _run(self, pieces: tuple[int, ...], vocabulary: Vocabulary) -> NDArray[np.float32]:
        import torch

        from skipqa.backbones.networks import sparse_query

        matched_as = torch.from_numpy(vocabulary.matched_as[:NUM_TERMS]).long()
        return sparse_query.factors(self.module, list(pieces), matched_as).numpy()


class TrainedQueryEncoder(LexicalEncoder):
    DELTA = "sparse_query.safetensors"
    encodes_whole_questions = True

    def __init__(
        self,
        vocabulary: Vocabulary,
        network: QueryNetwork,
        saturation: Saturation | None = None,
    ) -> None:
        super().__init__(vocabulary, saturation)
        self._network = network

    @property
    def network(self) -> QueryNetwork:
        return self._network

    def forget_question(self) -> None:
        self._network.forget()

    def config(self) -> dict[str, Any]:
        return super().config() | {"kind": "learned"}

    def save(self, folder: Path) -> None:
        """The index keeps a copy of the trained weights."""
        super().save(folder)
        shutil.copyfile(self._network.delta, folder / self.DELTA)

    def encode_query(self, text: str) -> SparseVector:
        """The MAX_TERMS largest products of idf and predicted factor."""
        factors = self._network.factors(self._pieces(text), self.vocabulary)
        weights = factors * self.idf[:NUM_TERMS]
        heaviest = np.argpartition(-weights, MAX_TERMS)[:MAX_TERMS]
        terms = np.sort(heaviest[weights[heaviest] > 0]).astype(np.int32)
        return SparseVector(terms, weights[terms])

    def query_flops(self, text: str) -> int:
        return self._network.flops(len(self._pieces(text)))

    def _pieces(self, text: str) -> tuple[int, ...]:
        return tuple(cut_pieces(self.tokenizer.encode(text).ids, MAX_TOKENS))
