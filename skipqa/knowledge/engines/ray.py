"""Search and encoding on a Ray cluster.

`RayEngine` sends queries to workers that each search some of the shards, and merges their results.
A shard is a segment (`Settings.shards` sets how many a build makes). Every worker opens the same
index folder, so it must be on a file system shared by all nodes. `RayEncoder` encodes the passages
of a build with Ray Data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skipqa.cluster import connect
from skipqa.errors import UserError
from skipqa.knowledge.encoder_reader import EncoderReader
from skipqa.knowledge.encoder_wrappers import EncoderWrapper
from skipqa.knowledge.engines.local import to_hits
from skipqa.knowledge.engines.options import read_options
from skipqa.knowledge.index.search import BATCH, Best, Effort, search_segment
from skipqa.knowledge.sparse_encoder import SparseEncoder
from skipqa.knowledge.vectors import SparseRows
from skipqa.types import Hit, Passage, SparseVector

if TYPE_CHECKING:
    from skipqa.knowledge.index.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Options:
    workers: int = 2
    address: str = ""  # empty: RAY_ADDRESS, or a Ray that is started here


class RayEngine:
    def __init__(self, snapshot: Snapshot, options: Options) -> None:
        ray = _ray(options.address)
        self.snapshot = snapshot
        self._ray = ray
        workers = min(options.workers, len(snapshot.segments))
        worker = ray.remote(_Worker)
        self._workers = [
            worker.remote(
                str(snapshot.folder),
                snapshot.manifest["generation"],
                range(i, len(snapshot.segments), workers),
            )
            for i in range(workers)
        ]

    @staticmethod
    def open(snapshot: Snapshot, options: Mapping[str, str]) -> RayEngine:
        return RayEngine(snapshot, read_options(Options, "ray", options))

    def search(self, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
        hits: list[list[Hit]] = []
        for start in range(0, len(queries), BATCH):
            batch = list(queries[start : start + BATCH])
            answers = self._ray.get([w.search.remote(batch, k) for w in self._workers])
            by_segment: dict[int, Best] = {}
            for answer in answers:
                by_segment.update(answer)
            found = [by_segment[number] for number in range(len(self.snapshot.segments))]
            hits.extend(to_hits(found, self.snapshot, k))
        return hits

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)


class _Worker:
    def __init__(self, folder: str, generation: int, segments: Sequence[int]) -> None:
        from skipqa.knowledge.index.snapshot import open_snapshot

        snapshot = open_snapshot(Path(folder))
        if snapshot.manifest["generation"] != generation:
            raise UserError(f"the index at {folder} changed while its workers started: open again")
        self.segments = {number: snapshot.segments[number] for number in segments}
        self.effort = Effort.for_rows(max(s.rows for s in snapshot.segments))

    def search(self, queries: list[SparseVector], k: int) -> dict[int, Best]:
        effort = Effort(self.effort.postings, max(self.effort.candidates, k))
        return {
            number: search_segment(segment, queries, effort, k)
            for number, segment in self.segments.items()
        }


class RayEncoder(EncoderWrapper):
    """Any encoder, with its passages encoded by Ray Data workers."""

    def __init__(
        self, inner: SparseEncoder, folder: Path, workers: int, batch: int = 1_024
    ) -> None:
        """`folder` receives the files that workers load the encoder from; all nodes must see it."""
        super().__init__(inner)
        self._folder = folder
        self._workers = workers
        self._batch = batch
        folder.mkdir(parents=True, exist_ok=True)
        inner.save(folder)
        _ray("")

    def encode_passages(self, passages: Sequence[Passage]) -> SparseRows:
        import ray.data

        items = [{"number": i, "title": p.title, "text": p.text} for i, p in enumerate(passages)]
        encoded = (
            ray.data.from_items(items)
            .map_batches(
                _EncodeBatch,
                fn_constructor_args=(self.config(), str(self._folder)),
                batch_size=self._batch,
                concurrency=self._workers,
            )
            .take_all()
        )
        encoded.sort(key=lambda row: row["number"])
        return SparseRows.stack(
            [
                SparseVector(np.asarray(r["terms"], np.int32), np.asarray(r["weights"], np.float32))
                for r in encoded
            ]
        )


class _EncodeBatch:
    def __init__(self, config: Mapping[str, Any], folder: str) -> None:
        self.encoder = EncoderReader().read(config, Path(folder))

    def __call__(self, batch: dict[str, NDArray]) -> dict[str, Any]:
        titles, texts = batch["title"].tolist(), batch["text"].tolist()
        rows = self.encoder.encode_passages(
            [Passage("", title, text, "") for title, text in zip(titles, texts, strict=True)]
        )
        vectors = [rows[i] for i in range(len(rows))]
        return {
            "number": batch["number"],
            "terms": _ragged([v.terms for v in vectors]),
            "weights": _ragged([v.weights for v in vectors]),
        }


def _ragged(arrays: Sequence[NDArray]) -> NDArray:
    column = np.empty(len(arrays), dtype=object)
    for i, array in enumerate(arrays):
        column[i] = array
    return column


def _ray(address: str) -> Any:
    return connect("the Ray engine", address, log_to_driver=False)
