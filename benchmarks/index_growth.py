"""How build time, disk space, memory, latency and recall change from 100 thousand to 6.5 million
synthetic passages of 120 terms, and what 109 million passages would need.

    python benchmarks/index_growth.py --folder /large/disk --passages 100000 300000 1000000
    python benchmarks/index_growth.py --folder /large/disk --passages 6500000 --queries 64

Indexes are kept in the folder and reused. Each size is measured in its own process, so that
resident memory can be compared; results of earlier sizes are kept in the results file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from index_synthetic import Synthetic, SyntheticEncoder, SyntheticSource

from skipqa.costs.environment import describe
from skipqa.knowledge.engines.local import LocalEngine
from skipqa.knowledge.index import Index, build
from skipqa.knowledge.measure import REGIONS, percentiles, recall
from skipqa.types import Hit

K = 4
TARGET = 109_000_000  # Wikipedia 21M and Wikidata 88M
SERVER = {"memory_gb": 64, "usd_an_hour": 0.50}  # list price of a common 8-core cloud machine


def measure(folder: Path, passages: int, num_queries: int) -> dict[str, Any]:
    data = Synthetic()
    path = folder / f"syn-{passages}"
    found: dict[str, Any] = {"passages": passages}
    if not (path / "manifest.json").exists():
        started = time.perf_counter()
        build(path, [SyntheticSource(passages)], SyntheticEncoder(data))  # type: ignore[arg-type,list-item]
        found["build_seconds"] = round(time.perf_counter() - started, 1)
    queries = data.queries(num_queries, passages)
    index = Index.open(path)
    sizes: dict[str, int] = {}
    for segment in index.segments:
        for name, file in segment.files.items():
            kind = name.partition(".")[0]
            sizes[kind] = sizes.get(kind, 0) + file["bytes"]
    searched = sum(sizes[kind] for kind in ("forward", "lists", "runs", "frequencies"))
    found["bytes_a_passage"] = {kind: round(size / passages, 1) for kind, size in sizes.items()}
    found["search_bytes_a_passage"] = round(searched / passages, 1)
    found["search_gb"] = round(searched / 1e9, 2)
    hits: dict[str, list[list[Hit]]] = {}
    groups = [queries[i : i + REGIONS] for i in range(0, len(queries), REGIONS)]
    for name in ("local", "compiled"):
        engine = LocalEngine.open(index, {}, compiled=name == "compiled")
        for group in groups:  # loads the pages that these queries need
            engine.search(group, K)
        wall, cpu = [], []
        for group in groups * 3:
            before, before_cpu = time.perf_counter(), time.thread_time()
            engine.search(group, K)
            cpu.append((time.thread_time() - before_cpu) * 1e3)
            wall.append((time.perf_counter() - before) * 1e3)
        single = []
        for query in queries:
            before = time.perf_counter()
            engine.search([query], K)
            single.append((time.perf_counter() - before) * 1e3)
        hits[name] = engine.search(queries, K)
        found[name] = {
            "effort": {name: getattr(engine.effort, name) for name in engine.effort.__slots__},
            "one_query_ms": percentiles(single),
            "8_region_queries_ms": percentiles(wall),
            "8_region_queries_cpu_ms": percentiles(cpu),
        }
    found["resident_gb_after_queries"] = round(_resident_bytes() / 1e9, 2)
    found["load"] = [round(value, 1) for value in os.getloadavg()]
    oracle = Index.open(f"exact:{path}").search(queries, K)
    for name, best in hits.items():
        found[name]["recall_at_4"] = recall(best, oracle)
    found["resident_gb_after_reading_every_vector"] = round(_resident_bytes() / 1e9, 2)
    found["queries"] = len(queries)
    return found


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def projection(measured: dict[str, Any]) -> dict[str, Any]:
    """Assumes shards of the largest measured size, all searched by every region query."""
    shards = int(np.ceil(TARGET / measured["passages"]))
    memory = shards * measured["search_gb"]
    servers = int(np.ceil(memory / SERVER["memory_gb"]))
    latency = measured["local"]["8_region_queries_ms"]["p50"]
    per_server = int(np.ceil(shards / servers))
    return {
        "passages": TARGET,
        "shards": shards,
        "arithmetic": (
            f"{TARGET:,} / {measured['passages']:,} = {shards} shards; x {measured['search_gb']} "
            f"GB = {memory:.0f} GB of vectors and lists, on {servers} machines of "
            f"{SERVER['memory_gb']} GB ({per_server} shards each); 8 region queries cost "
            f"{latency} ms a shard: {latency * per_server:.0f} core-ms a machine, so "
            f"{latency * per_server / 8:.0f} ms where 8 cores share the shards; money: "
            f"{servers} x {SERVER['usd_an_hour']} USD/h x 730 h = "
            f"{servers * SERVER['usd_an_hour'] * 730:.0f} USD a month"
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--passages", type=int, nargs="+", default=[100_000, 300_000, 1_000_000])
    parser.add_argument("--queries", type=int, default=160)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.folder, args.passages[0], args.queries)))
        return
    known: dict[str, Any] = {}
    if args.results and args.results.exists():
        known = json.loads(args.results.read_text())["results"]["sizes"]
    for passages in args.passages:
        command = [sys.executable, __file__, "--one", "--folder", str(args.folder)]
        command += ["--passages", str(passages), "--queries", str(args.queries)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        fresh = json.loads(done.stdout)
        known[str(passages)] = {**known.get(str(passages), {}), **fresh}
        print(json.dumps(fresh))
        largest = known[max(known, key=int)]
        results = {"sizes": known, "109 million": projection(largest)}
        if args.results:
            body = {**describe(), "results": results}
            args.results.write_text(json.dumps(body, indent=2) + "\n")
    print(results["109 million"]["arithmetic"])


if __name__ == "__main__":
    main()
