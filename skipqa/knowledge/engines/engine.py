"""What a search engine is. How to add one is described in `engines/__init__.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from skipqa.types import Hit, SparseVector


class Engine(Protocol):
    """Searches the passages of one snapshot, which it was opened with."""

    def search(self, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
        """The k best rows per query: highest score first, then lowest row."""


@runtime_checkable
class DenseEngine(Protocol):
    """An engine that also, or only, searches the embeddings of the passages."""

    def search_dense(self, queries: NDArray[np.floating], k: int) -> list[list[Hit]]:
        """The k best rows per dense query, [R, d] in total."""
