"""Builds Pocket-KB and an index of its passages, counts both, and measures retrieval with the
entity's name given: how often a text query alone then finds a gold passage, in that index and the
default ones.

The data folder holds `entities/` and `coco/` (docs/pocket_kb.md says what is in them).

    python benchmarks/pocket_kb.py --data FOLDER --built FOLDER
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.table import Table

from skipqa.cli.console import counting, err, out
from skipqa.config import RetrieveConfig
from skipqa.costs.environment import write_results
from skipqa.data.pocket_kb.build import Knowledge, build
from skipqa.knowledge import Library, index
from skipqa.knowledge.library import merge
from skipqa.knowledge.sources import open_source
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.text_query import same_length
from skipqa.tasks.okvqa import normalise

K = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="entities/ and coco/")
    parser.add_argument("--built", type=Path, required=True, help="where to build; must not exist")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    started = time.process_time()  # other work on the machine does not count
    with counting() as report:
        manifest = build(options.data, options.built, options.seed, Knowledge.default(), report)
    build_seconds = time.process_time() - started
    started = time.process_time()
    sources = [open_source(str(options.built / "passages.jsonl"))]
    with counting() as report:
        execution = index.Execution(report)
        index.build(options.built / "index", sources, LexicalEncoder.default(), execution=execution)
    index_seconds = time.process_time() - started

    rows = [
        json.loads(line)
        for split in ("train", "val")
        for line in (options.built / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert all(normalise(answer) == answer for row in rows for answer in row["answers"])
    opened = Library.open(["default", options.built / "index"])
    ids = {opened.passage(row).id for row in range(len(opened))}
    assert all(set(row["gold"]) <= ids for row in rows)

    named = named_recall([row for row in rows if row["split"] == "val" and row["gold"]], opened)
    for what, recall in named.items():
        table = Table(what, "train", "val", f"gold in the first {K}, name given")
        for name, split in manifest["counts"][what].items():
            shown = f"{100 * recall[name]:.1f} %" if name in recall else ""
            table.add_row(name, str(split.get("train", 0)), str(split.get("val", 0)), shown)
        out.print(table)
    results = {
        "seed": options.seed,
        "counts": manifest["counts"],
        "checksum": manifest["checksum"],
        "photos_mb": round((options.built / "photos.zip").stat().st_size / 1e6, 1),
        "build_cpu_seconds": round(build_seconds, 1),
        "index_cpu_seconds": round(index_seconds, 1),
        "named_recall": named,
    }
    err.print(f"written to {write_results(results, 'pocket_kb', options.out)}")


def named_recall(rows: Sequence[dict[str, Any]], opened: Library) -> dict[str, dict[str, float]]:
    """The fraction of questions with a passage of the first hop among the first K when the entity's
    name precedes the question: by category and over all, by subset, by way of asking."""
    hits: dict[str, dict[str, list[bool]]] = {}
    config = RetrieveConfig()
    sources = opened.searched(opened.weights(config.general_weight))
    for row in track(rows, "asking with the name given", console=err):
        text = f"{row['name']}: {row['question']}"
        queries = same_length([[s.index.encoder.encode_query(text)] for s in sources])
        found_by = [s.index.search(q, K) for s, q in zip(sources, queries, strict=True)]
        ranked = merge(sources, found_by, config.index_sharpness)[:K]
        found = {opened.passage(hit.row).id for hit in ranked}
        hit = not found.isdisjoint(row["hops"][0])
        groups = {
            "category": [row["category"], "all"],
            "subset": row["subset"] or ["ordinary"],
            "asked_by": [row["asked_by"]] if "asked_by" in row else [],
        }
        for what, names in groups.items():
            for name in names:
                hits.setdefault(what, {}).setdefault(name, []).append(hit)
    return {
        what: {name: sum(found) / len(found) for name, found in sorted(by_name.items())}
        for what, by_name in hits.items()
    }


if __name__ == "__main__":
    main()
