"""Search engines behind one protocol, chosen by the URI that opens an index.

folder, local:folder                 impact-ordered lists, the default
exact:folder                         every vector scored: the oracle
faiss:folder?nlist=1024&pq=64        dense maximum inner product over the embeddings
milvus:folder?uri=http://host:19530  a Milvus cluster, or a Milvus Lite file when no uri
ray:folder?workers=2                 shards of the index spread over a Ray cluster
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from skipqa.errors import UserError, choices
from skipqa.types import Hit, SparseVector

if TYPE_CHECKING:
    from skipqa.knowledge.index.index import Index

ENGINES = ("local", "compiled", "exact", "faiss", "milvus", "ray")


class Engine(Protocol):
    def search(self, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
        """For each query its k best rows: highest score first, then lowest row."""


@runtime_checkable
class DenseEngine(Protocol):
    def search_dense(self, queries: NDArray[np.floating], k: int) -> list[list[Hit]]:
        """The same for dense queries [R, d] against the passages' embeddings."""


def parse_uri(uri: str) -> tuple[str, Path, dict[str, str]]:
    """(engine, folder, options) of `engine:folder?option=value&...`; a bare path is local."""
    name, colon, rest = uri.partition(":")
    if not colon or "/" in name or len(name) == 1:  # a plain path, or one on a lettered drive
        name, rest = "local", uri
    elif name not in ENGINES:
        raise UserError(f"unknown engine {name!r} in {uri!r}; known are {choices(name, ENGINES)}")
    path, _, options = rest.partition("?")
    return name, Path(path).expanduser(), dict(parse_qsl(options, keep_blank_values=True))


def open_engine(name: str, index: Index, options: Mapping[str, str]) -> Engine:
    """An engine's own library is imported here, when it is asked for."""
    if name == "faiss":
        from skipqa.knowledge.engines.faiss import FaissEngine

        return FaissEngine.open(index, options)
    if name == "milvus":
        from skipqa.knowledge.engines.milvus import MilvusEngine

        return MilvusEngine.open(index, options)
    if name == "ray":
        from skipqa.knowledge.engines.ray import RayEngine

        return RayEngine.open(index, options)
    from skipqa.knowledge.engines.local import ExactEngine, LocalEngine

    if name == "exact":
        return ExactEngine.open(index, options)
    return LocalEngine.open(index, options, compiled=name == "compiled")
