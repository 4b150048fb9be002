"""Lexical passages, queries weighted by a trained network (a small SPLADE).

For each term the network predicts a factor on its idf, also for terms that are not in the question;
the idf comes from the index. Passages are encoded without a network, so the trained queries work
on any lexical index. Heavy imports happen on use: reading an index needs no torch.
"""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skipqa.knowledge.sparse_encoder import LexicalEncoder, Saturation
from skipqa.knowledge.vectors import NUM_TERMS
from skipqa.knowledge.vocabulary import Vocabulary
from skipqa.types import SparseVector

MAX_TERMS = 64  # per question; search reads one postings list for each
MAX_TOKENS = 128


class TrainedQueryEncoder(LexicalEncoder):
    """`delta` is a file of trained weights (`sparse_query.safetensors`), relative to the published
    text encoder."""

    DELTA = "sparse_query.safetensors"
    encodes_whole_questions = True

    def __init__(
        self, vocabulary: Vocabulary, delta: Path, saturation: Saturation | None = None
    ) -> None:
        super().__init__(vocabulary, saturation)
        self.delta = delta

    def config(self) -> dict[str, Any]:
        return super().config() | {"kind": "learned"}

    def save(self, folder: Path) -> None:
        """The index keeps a copy of the trained weights."""
        super().save(folder)
        shutil.copyfile(self.delta, folder / self.DELTA)

    def encode_query(self, text: str) -> SparseVector:
        """The MAX_TERMS largest products of idf and predicted factor."""
        weights = self._factors(text) * self.idf[:NUM_TERMS]
        heaviest = np.argpartition(-weights, MAX_TERMS)[:MAX_TERMS]
        terms = np.sort(heaviest[weights[heaviest] > 0]).astype(np.int32)
        return SparseVector(terms, weights[terms])

    def query_flops(self, text: str) -> int:
        from skipqa.backbones.networks import sparse_query

        return sparse_query.flops(self._network[0], len(self._pieces(text)))

    def _factors(self, text: str) -> NDArray[np.float32]:
        from skipqa.backbones.networks import sparse_query

        network, matched_as = self._network
        factors = sparse_query.factors(network, self._pieces(text), matched_as)
        return factors.numpy()

    def _pieces(self, text: str) -> list[int]:
        """Token ids with [CLS] and [SEP]; a text that is too long is cut before [SEP]."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids if len(ids) <= MAX_TOKENS else [*ids[: MAX_TOKENS - 1], ids[-1]]

    @cached_property
    def _network(self) -> tuple[Any, Any]:
        import torch

        from skipqa.backbones.networks import sparse_query

        matched_as = torch.from_numpy(self.vocabulary.matched_as[:NUM_TERMS]).long()
        return sparse_query.trained(self.delta), matched_as
