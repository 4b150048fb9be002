"""Encoders from the files that an index keeps of them.

Enters: the config and the folder of an encoder. Leaves: a sparse encoder. Every index holds its own
copy of these files; a reader that several indexes share opens equal weights once, so that their
encoders share a network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skipqa.errors import UserError
from skipqa.knowledge.sparse_encoder import LexicalEncoder, Saturation, SparseEncoder
from skipqa.knowledge.trained_query import QueryNetwork, TrainedQueryEncoder
from skipqa.knowledge.vocabulary import Vocabulary


class EncoderReader:
    def __init__(self) -> None:
        self._networks: dict[str, QueryNetwork] = {}  # by the content of the file

    def read(
        self, config: Mapping[str, Any], folder: Path, trained_query: Path | None = None
    ) -> SparseEncoder:
        """The encoder that an index was built with. `trained_query`, a file of trained weights,
        makes a lexical encoder encode questions with that network; other kinds ignore it."""
        settings = dict(config)
        kind = settings.pop("kind", None)
        if kind in ("lexical", "learned"):
            vocabulary = Vocabulary.read(folder / LexicalEncoder.FILE)
            saturation = Saturation(**settings)
            delta = folder / TrainedQueryEncoder.DELTA if kind == "learned" else trained_query
            if delta is None:
                return LexicalEncoder(vocabulary, saturation)
            return TrainedQueryEncoder(vocabulary, self._network(delta), saturation)
        if kind == "splade":
            from skipqa.knowledge.splade import SpladeEncoder

            return SpladeEncoder(**settings)
        raise UserError(f"unknown sparse encoder {kind!r}; known are lexical, learned and splade")

    def _network(self, delta: Path) -> QueryNetwork:
        return self._networks.setdefault(_content(delta), QueryNetwork(delta))


def _content(path: Path) -> str:
    """A hash of the file; of one that cannot be read, its path: whoever opens it says why."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return str(path)
