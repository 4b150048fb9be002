"""Dense maximum inner product search with FAISS, over the embeddings of the passages.

The paper has two configurations: IVF1024 with PQ (main text) and IVF4096-PQ64 (appendix), here
`faiss:folder?nlist=1024` and `faiss:folder?nlist=4096&pq=64`. The FAISS file is built on first use
and kept in the folder of the index, named after the generation and these options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skipqa.errors import MissingExtra, UserError
from skipqa.knowledge.engines.options import read_options
from skipqa.types import Hit, SparseVector

if TYPE_CHECKING:
    from skipqa.knowledge.index.snapshot import Snapshot

POINTS_PER_CENTROID = 39  # FAISS's minimum for training k-means
PQ_CENTROIDS = 256


@dataclass(frozen=True, slots=True)
class Options:
    nlist: int = 1024
    pq: int = 64
    nprobe: int = 32


class FaissEngine:
    def __init__(self, snapshot: Snapshot, options: Options) -> None:
        try:
            import faiss
        except ImportError as error:
            raise MissingExtra("the FAISS engine", "faiss") from error
        self._faiss = faiss
        self._index = self._load(snapshot, options)

    @staticmethod
    def open(snapshot: Snapshot, options: Mapping[str, str]) -> FaissEngine:
        return FaissEngine(snapshot, read_options(Options, "faiss", options))

    def search(self, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
        raise UserError("the FAISS engine only supports dense queries: call search_dense")

    def search_dense(self, queries: NDArray[np.floating], k: int) -> list[list[Hit]]:
        scores, rows = self._index.search(np.ascontiguousarray(queries, np.float32), k)
        return [
            sorted(
                (Hit(int(r), float(s)) for r, s in zip(*pair, strict=True) if r >= 0),
                key=lambda hit: (-hit.score, hit.row),
            )
            for pair in zip(rows, scores, strict=True)
        ]

    def _load(self, snapshot: Snapshot, options: Options) -> Any:
        folder = snapshot.folder / "engines"
        generation = snapshot.manifest["generation"]
        path = folder / f"faiss-{generation}-ivf{options.nlist}-pq{options.pq}"
        if not path.exists():
            folder.mkdir(exist_ok=True)
            for stale in folder.glob("faiss-*"):
                if not stale.name.startswith(f"faiss-{generation}-"):
                    stale.unlink()
            self._write(self._build(snapshot, options), path)
        loaded = self._faiss.read_index(str(path))
        if hasattr(loaded, "nprobe"):
            loaded.nprobe = options.nprobe
        return loaded

    def _build(self, snapshot: Snapshot, options: Options) -> Any:
        rows, vectors = snapshot.living_embeddings()
        width, count = vectors.shape[1], len(vectors)
        metric = self._faiss.METRIC_INNER_PRODUCT
        if count < POINTS_PER_CENTROID * PQ_CENTROIDS:  # too few to train on: exact search instead
            built = self._faiss.IndexIDMap2(self._faiss.IndexFlatIP(width))
        else:
            nlist = min(options.nlist, count // POINTS_PER_CENTROID)
            if width % options.pq:
                raise UserError(
                    f"faiss: pq={options.pq} does not divide the embedding width {width}"
                )
            built = self._faiss.index_factory(width, f"IVF{nlist},PQ{options.pq}", metric)
            built.train(vectors)
        built.add_with_ids(vectors, rows)
        return built

    def _write(self, built: Any, path: Path) -> None:
        partial = path.with_name(path.name + ".partial")
        self._faiss.write_index(built, str(partial))
        partial.replace(path)
