"""Milvus: a Milvus Lite file in the folder of the index, or a cluster given by its URI.

Milvus holds only the vectors; passages, ids and the encoder stay in the index. The vectors are
uploaded on first use, to a collection named after the corpus hash and the generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skipqa.errors import MissingExtra, UserError
from skipqa.knowledge.engines.options import read_options
from skipqa.types import Hit, SparseVector

if TYPE_CHECKING:
    from skipqa.knowledge.index.snapshot import Snapshot

ROWS_PER_INSERT = 1_000
VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class Options:
    uri: str = ""  # empty: a Milvus Lite file in the folder of the index
    token: str = ""


class MilvusEngine:
    def __init__(self, snapshot: Snapshot, options: Options) -> None:
        try:
            from pymilvus import MilvusClient
        except ImportError as error:
            raise MissingExtra("the Milvus engine", "milvus") from error
        uri = options.uri
        if not uri:
            (snapshot.folder / "engines").mkdir(exist_ok=True)
            uri = str(snapshot.folder / "engines" / "milvus.db")
        try:
            self._client = MilvusClient(uri=uri, token=options.token)
        except Exception as error:  # pymilvus raises its own exceptions and those of gRPC
            raise UserError(f"no Milvus at {uri}: {error}") from error
        corpus = snapshot.manifest["corpus"]["hash"][:16]
        self._name = f"skipqa_{corpus}_{snapshot.manifest['generation']}"
        self._fill(snapshot)

    @staticmethod
    def open(snapshot: Snapshot, options: Mapping[str, str]) -> MilvusEngine:
        return MilvusEngine(snapshot, read_options(Options, "milvus", options))

    def search(self, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
        asked = [i for i, query in enumerate(queries) if len(query)]
        hits: list[list[Hit]] = [[] for _ in queries]
        if asked:
            found = self._client.search(
                self._name,
                data=[_as_dict(queries[i]) for i in asked],
                anns_field=VECTOR,
                limit=k,
                search_params={"metric_type": "IP"},
            )
            for i, rows in zip(asked, found, strict=True):
                best = (Hit(int(row["row"]), float(row["distance"])) for row in rows)
                hits[i] = sorted(best, key=lambda hit: (-hit.score, hit.row))
        return hits

    def close(self) -> None:
        self._client.close()

    def _fill(self, snapshot: Snapshot) -> None:
        """Uploads the vectors, unless an earlier run has uploaded all of them."""
        from pymilvus import DataType

        client = self._client
        if client.has_collection(self._name):
            held = client.query(self._name, filter="", output_fields=["count(*)"])
            if held[0]["count(*)"] == len(snapshot):
                return
            client.drop_collection(self._name)
        schema = client.create_schema(auto_id=False)
        schema.add_field("row", DataType.INT64, is_primary=True)
        schema.add_field(VECTOR, DataType.SPARSE_FLOAT_VECTOR)
        indexes = client.prepare_index_params()
        indexes.add_index(field_name=VECTOR, index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
        client.create_collection(self._name, schema=schema, index_params=indexes)
        batch: list[dict[str, Any]] = []
        for row, vector in _living(snapshot):
            batch.append({"row": row, VECTOR: vector})
            if len(batch) == ROWS_PER_INSERT:
                client.insert(self._name, batch)
                batch = []
        if batch:
            client.insert(self._name, batch)
        client.flush(self._name)


def _living(snapshot: Snapshot) -> Iterator[tuple[int, dict[int, float]]]:
    """Rows that were not deleted. Milvus refuses empty vectors; they get one negligible weight."""
    for segment, base in zip(snapshot.segments, snapshot.bases.tolist(), strict=False):
        for local in range(segment.rows):
            if segment.deleted is None or not segment.deleted[local]:
                vector = snapshot.stored_vector(base + local)
                yield base + local, _as_dict(vector) or {0: np.finfo(np.float32).tiny.item()}


def _as_dict(vector: SparseVector) -> dict[int, float]:
    return dict(zip(vector.terms.tolist(), vector.weights.tolist(), strict=True))
