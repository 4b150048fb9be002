"""Search engines, chosen by the URI that opens an index.

folder, local:folder                    impact-ordered lists in NumPy, the default
compiled:folder                         the same, compiled with Numba
exact:folder                            scores every vector: the oracle
faiss:folder?nlist=1024&pq=64           dense maximum inner product search over the embeddings
milvus:folder?uri=http://host:19530     a Milvus cluster, or a Milvus Lite file without `uri`
opensearch:folder?uri=http://host:9200  an OpenSearch cluster, by Seismic
ray:folder?workers=2                    shards of the index on a Ray cluster

To add an engine:

1. Write a module in this folder with a class that follows the protocol `Engine` (engine.py), and a
   static method `open(snapshot, options)`. Parse the URI's options with `options.read_options`.
2. Write a function below that imports and opens it, and register that in `ENGINES`.
3. Add a test to tests/knowledge/test_engines.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from skipqa.errors import UserError, choices
from skipqa.knowledge.engines.engine import Engine

if TYPE_CHECKING:
    from skipqa.knowledge.index.snapshot import Snapshot

Options = Mapping[str, str]


# Each engine is imported when it is used, because most need a library of their own.
def _local(snapshot: Snapshot, options: Options) -> Engine:
    from skipqa.knowledge.engines.local import LocalEngine

    return LocalEngine.open(snapshot, options)


def _compiled(snapshot: Snapshot, options: Options) -> Engine:
    from skipqa.knowledge.engines.local import LocalEngine

    return LocalEngine.open(snapshot, options, compiled=True)


def _exact(snapshot: Snapshot, options: Options) -> Engine:
    from skipqa.knowledge.engines.local import ExactEngine

    return ExactEngine.open(snapshot, options)


def _faiss(snapshot: Snapshot, options: Options) -> Engine:
    from skipqa.knowledge.engines.faiss import FaissEngine

    return FaissEngine.open(snapshot, options)


def _milvus(snapshot: Snapshot, options: Options) -> Engine:
    from skipqa.knowledge.engines.milvus import MilvusEngine

    return MilvusEngine.open(snapshot, options)


def _opensearch(snapshot: Snapshot, options: Options) -> Engine:
    from skipqa.knowledge.engines.opensearch import OpenSearchEngine

    return OpenSearchEngine.open(snapshot, options)


def _ray(snapshot: Snapshot, options: Options) -> Engine:
    from skipqa.knowledge.engines.ray import RayEngine

    return RayEngine.open(snapshot, options)


ENGINES: Mapping[str, Callable[[Snapshot, Options], Engine]] = {
    "local": _local,
    "compiled": _compiled,
    "exact": _exact,
    "faiss": _faiss,
    "milvus": _milvus,
    "opensearch": _opensearch,
    "ray": _ray,
}


def parse_uri(uri: str) -> tuple[str, Path, dict[str, str]]:
    """(engine, folder, options) of `engine:folder?option=value&...`; a bare path is local."""
    name, colon, rest = uri.partition(":")
    if not colon or "/" in name or len(name) == 1:  # a plain path, or one with a drive letter
        name, rest = "local", uri
    elif name not in ENGINES:
        raise UserError(f"unknown engine {name!r} in {uri!r}; known are {choices(name, ENGINES)}")
    path, _, options = rest.partition("?")
    return name, Path(path).expanduser(), dict(parse_qsl(options, keep_blank_values=True))


def open_engine(name: str, snapshot: Snapshot, options: Options) -> Engine:
    return ENGINES[name](snapshot, options)
