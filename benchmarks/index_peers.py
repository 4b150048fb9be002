"""Compares skipqa's local search ("ours") with Seismic, Milvus Lite and SciPy on the same vectors
and queries. Each engine runs in its own process, so that its memory can be measured, at the
cheapest of its settings with a recall@4 of at least 0.95; skipqa also runs at its default setting.

    python benchmarks/index_peers.py --passages 100000

Needs: pip install pyseismic-lsr pymilvus milvus-lite scipy numba
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from index_synthetic import Synthetic, SyntheticEncoder, SyntheticSource

from skipqa.costs.environment import describe
from skipqa.knowledge.measure import REGIONS, percentiles
from skipqa.knowledge.vectors import NUM_TERMS, SparseRows
from skipqa.types import SparseVector

K = 4
ENOUGH = 0.95
ENGINES = ("ours, NumPy", "ours, compiled", "Seismic", "SciPy, exact", "Milvus Lite")

Search = Callable[[Sequence[SparseVector]], list[list[int]]]  # rows, best first
Settings = Iterator[tuple[str, Search]]  # cheapest first


def ours(rows: SparseRows, folder: Path, compiled: bool) -> Settings:
    from skipqa.knowledge.engines.local import LocalEngine
    from skipqa.knowledge.index import Index, build

    count = len(rows)
    build(folder, [SyntheticSource(count)], SyntheticEncoder(Synthetic()))  # type: ignore[arg-type,list-item]
    index = Index.open(folder)
    yield "built", lambda queries: []
    tried = [
        {"postings": str(p), "candidates": str(c)} for p in (1024, 2048, 4096) for c in (16, 24, 32)
    ]
    for options in [*tried, {}]:
        engine = LocalEngine.open(index, options, compiled=compiled)
        name = (
            "default"
            if not options
            else "postings={postings}, candidates={candidates}".format(**options)
        )
        yield (
            name,
            lambda queries, e=engine: [[h.row for h in hits] for hits in e.search(queries, K)],
        )  # type: ignore[misc]


def seismic(rows: SparseRows, folder: Path) -> Settings:
    from seismic import SeismicIndexRaw

    folder.mkdir()
    with (folder / "vectors.bin").open("wb") as file:
        file.write(struct.pack("<I", len(rows)))
        for i in range(len(rows)):
            vector = rows[i]
            file.write(struct.pack("<I", len(vector)))
            file.write(vector.terms.astype("<u4").tobytes())
            file.write(vector.weights.astype("<f4").tobytes())
    yield "start", lambda queries: []
    built = SeismicIndexRaw.build(
        str(folder / "vectors.bin"), n_postings=3500, centroid_fraction=0.1, summary_energy=0.4
    )
    (folder / "vectors.bin").unlink()
    built.save(str(folder / "index"))
    yield "built", lambda queries: []
    for cut, factor in ((3, 0.9), (4, 0.9), (5, 0.9), (5, 0.7), (8, 0.9), (8, 0.7), (12, 0.7)):

        def search(
            queries: Sequence[SparseVector], c: int = cut, f: float = factor
        ) -> list[list[int]]:
            return [
                [row for _, row in built.search(q.terms, q.weights, K, c, f, 0, True)]
                for q in queries
            ]

        yield f"query_cut={cut}, heap_factor={factor}", search


def scipy_exact(rows: SparseRows, folder: Path) -> Settings:
    from scipy.sparse import csc_matrix, csr_matrix

    folder.mkdir()
    shape = (len(rows), NUM_TERMS)
    matrix = csc_matrix(
        csr_matrix((rows.weights, rows.terms.astype(np.int32), rows.offsets), shape)
    )
    for name in ("data", "indices", "indptr"):
        getattr(matrix, name).tofile(folder / name)
    yield "built", lambda queries: []

    def search(queries: Sequence[SparseVector]) -> list[list[int]]:
        found = []
        for query in queries:
            scores = np.zeros(len(rows), np.float32)
            for term, weight in zip(query.terms.tolist(), query.weights.tolist(), strict=True):
                part = slice(matrix.indptr[term], matrix.indptr[term + 1])
                scores[matrix.indices[part]] += weight * matrix.data[part]
            best = np.argpartition(-scores, K)[:K]
            found.append(best[np.argsort(-scores[best])].tolist())
        return found

    yield "term at a time", search


def milvus(rows: SparseRows, folder: Path) -> Settings:
    from pymilvus import DataType, MilvusClient

    folder.mkdir()
    client = MilvusClient(str(folder / "milvus.db"))
    schema = client.create_schema(auto_id=False)
    schema.add_field("row", DataType.INT64, is_primary=True)
    schema.add_field("vector", DataType.SPARSE_FLOAT_VECTOR)
    params = client.prepare_index_params()
    params.add_index(field_name="vector", index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
    client.create_collection("c", schema=schema, index_params=params)
    for start in range(0, len(rows), 1_000):
        batch = [
            {"row": i, "vector": _as_dict(rows[i])}
            for i in range(start, min(start + 1_000, len(rows)))
        ]
        client.insert("c", batch)
    client.flush("c")
    yield "built", lambda queries: []

    def search(queries: Sequence[SparseVector]) -> list[list[int]]:
        found = client.search(
            "c", data=[_as_dict(q) for q in queries], anns_field="vector", limit=K,
            search_params={"metric_type": "IP"},
        )  # fmt: skip
        return [[int(hit["row"]) for hit in hits] for hits in found]

    yield "SPARSE_INVERTED_INDEX, IP", search


def _as_dict(vector: SparseVector) -> dict[int, float]:
    return dict(zip(vector.terms.tolist(), vector.weights.tolist(), strict=True))


def oracle(rows: SparseRows, queries: Sequence[SparseVector]) -> list[set[int]]:
    """Exact search over the unquantized weights."""
    found = []
    for query in queries:
        table = np.zeros(NUM_TERMS)
        table[query.terms] = query.weights
        sums = np.concatenate([[0.0], np.cumsum(table[rows.terms] * rows.weights)])
        found.append(set(np.argsort(-np.diff(sums[rows.offsets]), kind="stable")[:K].tolist()))
    return found


def measure(engine: str, passages: int, num_queries: int, folder: Path) -> dict[str, Any]:
    data = Synthetic()
    rows, queries = data.rows(passages), data.queries(num_queries, passages)
    truth = oracle(rows, queries)
    resident_before = _resident()
    settings = {
        "ours, NumPy": lambda: ours(rows, folder / "i", False),
        "ours, compiled": lambda: ours(rows, folder / "i", True),
        "Seismic": lambda: seismic(rows, folder / "i"),
        "SciPy, exact": lambda: scipy_exact(rows, folder / "i"),
        "Milvus Lite": lambda: milvus(rows, folder / "i"),
    }[engine]()
    started = time.perf_counter()
    points: list[dict[str, Any]] = []
    result: dict[str, Any] = {}
    for name, search in settings:
        if name == "start":
            started = time.perf_counter()
            continue
        if name == "built":
            result["build_seconds"] = round(time.perf_counter() - started, 1)
            size = sum(f.stat().st_size for f in (folder / "i").rglob("*") if f.is_file())
            result["bytes_a_passage"] = round(size / passages)
            continue
        if points and points[-1]["recall_at_4"] >= ENOUGH and name != "default":
            continue
        search(queries[:REGIONS])
        single, regions, found = [], [], []
        for query in queries:
            before = time.perf_counter()
            found += search([query])
            single.append((time.perf_counter() - before) * 1e3)
        for i in range(0, len(queries) - REGIONS + 1, REGIONS):
            before = time.perf_counter()
            search(queries[i : i + REGIONS])
            regions.append((time.perf_counter() - before) * 1e3)
        hit = sum(len(set(a) & b) for a, b in zip(found, truth, strict=True))
        points.append(
            {
                "settings": name,
                "recall_at_4": round(hit / (K * len(queries)), 4),
                "one_query_ms": percentiles(single),
                "8_region_queries_ms": percentiles(regions),
            }
        )
    result["resident_mb_after_queries"] = round((_resident() - resident_before) / 1e6)
    result["points"] = points
    result["load"] = [round(value, 1) for value in os.getloadavg()]
    return result


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--results", type=Path)
    parser.add_argument("--one", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        with tempfile.TemporaryDirectory(prefix="skipqa-peers-") as folder:
            found = measure(args.one, args.passages, args.queries, Path(folder))
        print("RESULT " + json.dumps(found))
        return
    results: dict[str, Any] = {}
    for engine in args.engines:
        command = [sys.executable, __file__, "--one", engine, "--passages", str(args.passages)]
        command += ["--queries", str(args.queries)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        results[engine] = json.loads(lines[-1][7:]) if lines else {"failed": done.returncode}
        print(engine, json.dumps(results[engine]), flush=True)
    if args.results:
        peers = {n: version(n) for n in ("pyseismic-lsr", "pymilvus", "milvus-lite", "scipy")}
        found = {"peers": peers, "passages": args.passages, "engines": results}
        args.results.write_text(json.dumps({**describe(), "results": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
