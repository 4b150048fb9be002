"""OpenSearch, from 3.3: a `sparse_vector` field, searched approximately by Seismic.

OpenSearch holds only the vectors; passages, ids and the encoder stay in the index. The vectors are
uploaded on first use, to an OpenSearch index named after the corpus hash and the generation. It
stores weights in 8 bits and prunes its lists, so it finds candidates, and the stored vectors here
give their scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from skipqa.errors import MissingExtra, UserError
from skipqa.knowledge.engines.options import read_options
from skipqa.types import Hit, SparseVector

if TYPE_CHECKING:
    from skipqa.knowledge.index.snapshot import Snapshot

VECTOR = "vector"
ROWS_PER_REQUEST = 1_000
TIMEOUT_S = 120  # merging segments builds the clusters of every list
QUERY_CEILING = 16.0


@dataclass(frozen=True, slots=True)
class Options:
    uri: str = ""  # http://host:9200, or https://user:password@host:9200
    candidates: int = 64  # found per query and scored again
    shards: int = 1
    threshold: int = 1_000_000  # segments with fewer rows are searched exactly


class OpenSearchEngine:
    def __init__(self, snapshot: Snapshot, options: Options) -> None:
        try:
            import opensearchpy
        except ImportError as error:
            raise MissingExtra("the OpenSearch engine", "opensearch") from error
        if urlsplit(options.uri).hostname is None:
            raise UserError("opensearch: say where it is, as in ?uri=http://host:9200")
        self.snapshot, self.options = snapshot, options
        self._errors = opensearchpy.exceptions.OpenSearchException
        self._client = opensearchpy.OpenSearch([options.uri], timeout=TIMEOUT_S)
        corpus = snapshot.manifest["corpus"]["hash"][:16]
        self._name = f"skipqa-{corpus}-{snapshot.manifest['generation']}"
        with self._told():
            self._fill()

    @staticmethod
    def open(snapshot: Snapshot, options: Mapping[str, str]) -> OpenSearchEngine:
        return OpenSearchEngine(snapshot, read_options(Options, "opensearch", options))

    def search(self, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
        asked = [i for i, query in enumerate(queries) if len(query)]
        hits: list[list[Hit]] = [[] for _ in queries]
        if not asked:
            return hits
        size = max(k, self.options.candidates)
        lines = [line for i in asked for line in ({}, _search_body(queries[i], size))]
        with self._told():
            found = self._client.msearch(body=lines, index=self._name)["responses"]
        for i, response in zip(asked, found, strict=True):
            if "error" in response:
                raise UserError(f"OpenSearch at {self._host}: {response['error']['reason']}")
            rows = [int(hit["_id"]) for hit in response["hits"]["hits"]]
            best = [Hit(row, self._score(queries[i], row)) for row in rows]
            hits[i] = sorted(best, key=lambda hit: (-hit.score, hit.row))[:k]
        return hits

    def close(self) -> None:
        self._client.close()

    @property
    def _host(self) -> str:
        """Without the password."""
        return urlsplit(self.options.uri).netloc.rpartition("@")[2]

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"OpenSearch at {self._host}: {reason} (needed: 3.3 or later with neural search)"
            ) from error

    def _score(self, query: SparseVector, row: int) -> float:
        stored = self.snapshot.stored_vector(row)
        _, ours, theirs = np.intersect1d(
            query.terms, stored.terms, assume_unique=True, return_indices=True
        )
        return float(query.weights[ours] @ stored.weights[theirs])

    def _fill(self) -> None:
        """Uploads the vectors, unless an earlier run has uploaded all of them."""
        from opensearchpy.helpers import bulk

        indices = self._client.indices
        if indices.exists(index=self._name):
            indices.refresh(index=self._name)
            if self._client.count(index=self._name)["count"] == len(self.snapshot):
                return
            indices.delete(index=self._name)
        indices.create(index=self._name, body=self._mapping())
        actions = ({"_index": self._name, **document} for document in _living(self.snapshot))
        bulk(self._client, actions, chunk_size=ROWS_PER_REQUEST)
        # The lists of a segment are clustered when it is written; many small ones are slow.
        indices.forcemerge(index=self._name, max_num_segments=1)
        indices.refresh(index=self._name)

    def _mapping(self) -> dict[str, Any]:
        parameters = {
            "approximate_threshold": self.options.threshold,
            # The weight of 255, which is the same in 8 bits here
            "quantization_ceiling_ingest": self.snapshot.manifest["encoder"]["ceiling"],
            "quantization_ceiling_search": QUERY_CEILING,
        }
        method = {"name": "seismic", "parameters": parameters}
        return {
            "settings": {"index": {"sparse": True, "number_of_shards": self.options.shards}},
            "mappings": {"properties": {VECTOR: {"type": "sparse_vector", "method": method}}},
        }


def _search_body(query: SparseVector, size: int) -> dict[str, Any]:
    """All terms of the query count. Its length does not matter to the order, so it is scaled to
    what 8 bits hold."""
    scaled = query.weights * (QUERY_CEILING / query.weights.max())
    sparse = {
        "query_tokens": _as_dict(SparseVector(query.terms, scaled)),
        "method_parameters": {"k": size, "top_n": len(query), "heap_factor": 1.0},
    }
    return {"size": size, "_source": False, "query": {"neural_sparse": {VECTOR: sparse}}}


def _living(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """Rows that were not deleted; one without terms has no vector and is never found."""
    for segment, base in zip(snapshot.segments, snapshot.bases.tolist(), strict=False):
        for local in range(segment.rows):
            if segment.deleted is None or not segment.deleted[local]:
                vector = _as_dict(snapshot.stored_vector(base + local))
                yield {"_id": str(base + local), "_source": {VECTOR: vector} if vector else {}}


def _as_dict(vector: SparseVector) -> dict[str, float]:
    """Terms by their number, which is how Seismic knows them."""
    return dict(zip(map(str, vector.terms.tolist()), vector.weights.tolist(), strict=True))
