"""kill -9 during build, add and compaction, at random moments.

After every kill the old index must verify, answer as before, and hold the same corpus. The same
command must then finish, starting from the complete parts, with the result of an undisturbed run.

    python benchmarks/index_kill.py --kills 50
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

OPERATIONS = ("build", "add", "compact")
ROWS = 4_000
PART_ROWS = 512  # small, so that a run writes many parts


def child(operation: str, folder: Path) -> None:
    """The process that is killed. Prints when imports are done and how much it resumed."""
    from skipqa.knowledge.index import Execution, add, build, compact
    from skipqa.knowledge.sources.tables import JsonLines
    from skipqa.knowledge.sparse_encoder import LexicalEncoder

    encoder = LexicalEncoder.default()
    first: list[int] = []

    def report(what: str, done: int, total: int | None) -> None:
        if what == "encoding" and not first:
            first.append(done)

    execution = Execution(report, batch_documents=256, part_rows=PART_ROWS)
    print("started", flush=True)
    if operation == "build":
        build(folder, [JsonLines(folder.parent / "new.jsonl")], encoder, execution=execution)
    elif operation == "add":
        add(folder, [JsonLines(folder.parent / "more.jsonl")], execution=execution)
    else:
        compact(folder, report)
    print(f"resumed {first[0] - 256 if first else 0}", flush=True)


def start(operation: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", operation, "--folder", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def finish(process: subprocess.Popen[str]) -> int:
    """How many passages the run did not have to encode again."""
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return max(0, int(said.split()[-1]))


def state(folder: Path) -> dict[str, Any]:
    """What a user sees of an index, apart from row numbers."""
    from skipqa.knowledge.index import Index, verify

    faults = verify(folder)
    assert faults == [], faults
    index = Index.open(folder)
    queries = [index.encoder.encode_query(text) for text in ("red house 17", "old boat river")]
    hits = [
        sorted((round(hit.score, 3), index.passage(hit.row).id) for hit in found)
        for found in index.search(queries, 4)
    ]
    corpus = index.manifest["corpus"]
    return {"passages": len(index), "hash": corpus["hash"], "hits": hits}


def write_corpora(folder: Path) -> None:
    rng = random.Random(7)
    words = "red blue old new small house boat river tree stone bridge market bird king".split()
    for name, low, high in (("old", 0, 2_000), ("new", 0, ROWS), ("more", 1_000, 1_000 + ROWS)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for i in range(low, high):
                text = " ".join(rng.choices(words, k=20))
                file.write(json.dumps({"id": f"x{i}", "text": f"{text} {i} ({name})"}) + "\n")


def prepare(operation: str, base: Path) -> Path:
    """An index for `operation` to change; for compact it has additions and deletions."""
    from skipqa.knowledge.index import add, build, delete
    from skipqa.knowledge.sources.tables import JsonLines
    from skipqa.knowledge.sparse_encoder import LexicalEncoder

    folder = base / f"before-{operation}"
    build(folder, [JsonLines(base / "old.jsonl")], LexicalEncoder.default())
    if operation == "compact":
        add(folder, [JsonLines(base / "more.jsonl")])
        delete(folder, [f"old:x{i}" for i in range(0, 600, 2)])
    return folder


def run(kills: int, seed: int, base: Path) -> dict[str, Any]:
    rng = random.Random(seed)
    write_corpora(base)
    before, expected, duration = {}, {}, {}
    for operation in OPERATIONS:
        folder = prepare(operation, base)
        before[operation] = state(folder)
        whole = base / "whole"
        shutil.copytree(folder, whole)
        process = start(operation, whole)
        began = time.perf_counter()
        finish(process)
        duration[operation] = time.perf_counter() - began
        expected[operation] = state(whole)
        shutil.rmtree(whole)
    done: dict[str, Any] = {
        operation: {"kills": 0, "after_the_end": 0, "resumed_with_parts": 0}
        for operation in OPERATIONS
    }
    total = 0
    while total < kills:
        operation = OPERATIONS[total % len(OPERATIONS)]
        folder = base / "victim"
        shutil.copytree(base / f"before-{operation}", folder)
        process = start(operation, folder)
        time.sleep(rng.uniform(0, duration[operation]))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode == 0:  # it finished before the kill
            done[operation]["after_the_end"] += 1
        else:
            total += 1
            done[operation]["kills"] += 1
            seen = state(folder)  # a kill after the commit leaves the complete new index
            assert seen in (before[operation], expected[operation]), (operation, seen)
        resumed = finish(start(operation, folder))
        done[operation]["resumed_with_parts"] += resumed > 0
        assert state(folder) == expected[operation], operation
        assert not (folder / "building").exists()
        shutil.rmtree(folder)
    return {"kills": total, "operations": done, "failures": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--results", type=Path, help="write the JSON here")
    parser.add_argument("--child", choices=OPERATIONS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.folder)
        return
    with tempfile.TemporaryDirectory(prefix="skipqa-kill-") as base:
        results = run(args.kills, args.seed, Path(base))
    if args.results:
        from skipqa.costs.environment import describe

        args.results.write_text(json.dumps({**describe(), "results": results}, indent=2) + "\n")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
