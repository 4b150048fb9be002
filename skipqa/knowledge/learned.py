"""The pocket SPLADE: passages as the lexical encoder has them, questions weighed by a network.

The network says how much more or less than its idf each term of a question counts, and which
terms join in; the idf stays the index's own. So a build runs no network at all, and an index of
any corpus can be asked this way. Heavy imports happen on use: reading an index needs no torch.
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

MAX_TERMS = 64  # of a question; the index walks one postings list for each
MAX_TOKENS = 128


class LearnedEncoder(LexicalEncoder):
    """`difference` is what training added to the published text encoder."""

    DELTA = "sparse_query.safetensors"
    understands = True

    def __init__(
        self, vocabulary: Vocabulary, delta: Path, saturation: Saturation | None = None
    ) -> None:
        super().__init__(vocabulary, saturation)
        self.delta = delta

    def config(self) -> dict[str, Any]:
        return super().config() | {"kind": "learned"}

    def save(self, folder: Path) -> None:
        """The index keeps what it was trained to be asked with."""
        super().save(folder)
        shutil.copyfile(self.delta, folder / self.DELTA)

    def encode_query(self, text: str) -> SparseVector:
        """The heaviest terms of idf times the learned factor."""
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
        """With [CLS] and [SEP], also where the text is cut."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids if len(ids) <= MAX_TOKENS else [*ids[: MAX_TOKENS - 1], ids[-1]]

    @cached_property
    def _network(self) -> tuple[Any, Any]:
        import torch

        from skipqa.backbones.networks import sparse_query

        matched_as = torch.from_numpy(self.vocabulary.matched_as[:NUM_TERMS]).long()
        return sparse_query.trained(self.delta), matched_as
