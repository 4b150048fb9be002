"""What training adds to retrieval: Pocket-KB's validation questions, lexical beside learned.

With the name given: is a gold passage of the first step among the first four when the entity's
name is put before the question ("before"), or its terms are added to it ("beside")? Counted apart
are questions whose entity and relation no training question has. Through the pipeline: the same
for what the photo shows, by regions, by one query for all kept tokens, and by one for the picture
as a whole. Also: how long the default index takes to build with what was trained, and its bytes.

    python benchmarks/sparse_encoder.py --pocket-kb FOLDER --components FOLDER
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from common import ask, look, opened
from rich.progress import track
from rich.table import Table

from skipqa import components as trained
from skipqa.backbones.pocket import Pocket
from skipqa.cli.console import counting, err, out, prepare_process
from skipqa.config import RegionsConfig, RetrieveConfig, preset
from skipqa.costs.environment import write_results
from skipqa.evaluation.statistics import mean_interval
from skipqa.knowledge import Index, index
from skipqa.knowledge.learned import LearnedEncoder
from skipqa.knowledge.sources.factbook import Factbook
from skipqa.knowledge.sources.wordnet import WordNet
from skipqa.knowledge.vocabulary import Vocabulary
from skipqa.pipeline import load
from skipqa.stages.prune import prune
from skipqa.stages.regions import find_regions
from skipqa.stages.retrieve import retrieve, weighted_sum
from skipqa.trace import StageRecord
from skipqa.types import Budget, Region, SparseVector

K = 4
Row = dict[str, Any]
Hits = dict[str, list[bool]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pocket-kb", type=Path, required=True, help="as built, with index/")
    parser.add_argument("--components", type=Path, required=True, help="sparse_query, expectation")
    parser.add_argument("--photos", type=int, default=300, help="questions through the pipeline")
    parser.add_argument("--split", choices=("train", "val"), default="val")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    learned = trained.load(options.components, preset="pocket")
    assert learned.sparse_query is not None
    lexical_index, learned_index = (Index.open(options.pocket_kb / "index") for _ in range(2))
    learned_index.ask_with(learned.sparse_query)
    indexes = {"lexical": lexical_index, "learned": learned_index}
    rows = read(options.pocket_kb, options.split)
    seen = {(row["entity"], row["relation"]) for row in read(options.pocket_kb, "train")}

    results: dict[str, Any] = {
        "questions": len(rows),
        "files": {
            path.name: path.stat().st_size
            for name in ("sparse_query", "expectation")
            if (path := options.components / f"{name}.safetensors").exists()
        },
        "query": {name: of_queries(rows[:200], one) for name, one in indexes.items()},
    }
    for one in indexes.values():
        encode_once(one)
    results |= {
        "named": {name: named(rows, seen, one) for name, one in indexes.items()},
        "build": built(learned.sparse_query),
    }
    show("name given", results["named"])
    if options.photos:
        chosen = random.Random(options.seed).sample(rows, min(options.photos, len(rows)))
        results["pipeline"] = piped(chosen, options.pocket_kb, indexes, learned)
        show("through the pipeline", results["pipeline"])
    err.print(f"written to {write_results(results, 'sparse_encoder', options.out)}")


def read(folder: Path, split: str) -> list[Row]:
    lines = (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["hops"]]


def named(rows: Sequence[Row], seen: set[tuple[str, str]], one: Index) -> dict[str, Any]:
    """Recall@K by category, over all, and over what is new; for both ways to give the name."""
    encoder = one.encoder

    def before(row: Row) -> SparseVector:
        return encoder.encode_query(f"{row['name']}: {row['question']}")

    def beside(row: Row) -> SparseVector:
        name = encoder.encode_terms(row["name"])
        return weighted_sum([(1.0, name), (1.0, encoder.encode_query(row["question"]))])

    found: dict[str, Any] = {}
    for way, query in (("before", before), ("beside", beside)):
        hits: Hits = {}
        for row in track(rows, f"the name {way}", console=err):
            new = (row["entity"], row["relation"]) not in seen
            groups = (row["category"], "all", *(["new"] if new else []))
            count(hits, groups, row, [h.row for h in one.search([query(row)], K)[0]], one)
        found[way] = summary(hits)
    return found


def piped(
    rows: Sequence[Row], folder: Path, indexes: dict[str, Index], learned: trained.Components
) -> dict[str, Any]:
    """Recall@K for what the photo shows."""
    pipeline = load(index=folder / "index")
    backbone, config = pipeline.backbone, pipeline.config
    assert isinstance(backbone, Pocket)
    # Settings were chosen for both together; either alone keeps the default where that is better.
    chosen, default = preset("pocket", learned.settings).retrieve, RetrieveConfig()
    ways: dict[str, tuple[Index, RetrieveConfig, Any]] = {
        "lexical": (indexes["lexical"], default, None),
        "learned terms": (indexes["learned"], default, None),
        "expectation": (
            indexes["lexical"],
            replace(chosen, question_weight=default.question_weight),
            learned.expectation,
        ),
        "both": (indexes["learned"], chosen, learned.expectation),
    }
    allowed = Budget(config.budget.most_tokens(config.encode.num_tokens), K)
    hits: dict[str, Hits] = {}
    with opened(folder / "photos.zip") as photos:
        for row in track(rows, "through the pipeline", console=err):
            tokens, asked = look(backbone, photos[row["image"]]()), ask(backbone, row["question"])
            record = StageRecord("")
            kept = prune(tokens, asked, allowed, backbone.concepts, config.prune, record)
            whole = tokens.overview.topk(config.regions.concepts)
            concepts = tuple(zip(whole.indices.tolist(), whole.values.tolist(), strict=True))
            asking: dict[str, tuple[Region, ...]] = {
                "regions": find_regions(kept, config.regions, record),
                "kept tokens": find_regions(kept, RegionsConfig(max_regions=1), record),
                "picture": (Region((0.0, 0.0, 1.0, 1.0), (0,), concepts, 1.0),),
            }
            groups = ("all", group_of(row))
            for way, (one, settings, expectation) in ways.items():
                for by, regions in asking.items():
                    settings = replace(settings, per_region=K if by == "regions" else 4 * K)
                    retrieved = retrieve(
                        regions, asked, allowed, backbone.concepts, one, settings, record,
                        None, tokens, expectation,
                    )  # fmt: skip
                    found = [passage.row for passage in retrieved.passages]
                    count(hits.setdefault(f"{way}, {by}", {}), groups, row, found, one)
    return {name: {"pipeline": summary(one)} for name, one in hits.items()}


def group_of(row: Row) -> str:
    """Flags are small too, and are counted apart."""
    if row["category"] == "country":
        return "flags"
    return "small" if "small" in row["subset"] else "large"


def count(hits: Hits, groups: Sequence[str], row: Row, found: Sequence[int], one: Index) -> None:
    ids = {one.passage(number).id for number in found[:K]}
    for group in groups:
        hits.setdefault(group, []).append(not ids.isdisjoint(row["hops"][0]))


def summary(hits: Hits) -> dict[str, Any]:
    found = {}
    for group, some in sorted(hits.items()):
        found[group] = asdict(mean_interval([float(hit) for hit in some]))
    return found


def encode_once(one: Index) -> None:
    """Many questions are asked often: once timed, their terms need not be weighed again."""
    one.encoder.encode_query = cache(one.encoder.encode_query)  # type: ignore[method-assign]


def of_queries(rows: Sequence[Row], one: Index) -> dict[str, float]:
    def timed(work: Callable[[], Any]) -> float:
        started = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - started)

    texts = [row["question"] for row in rows]
    one.encoder.encode_query(texts[0])  # loads what it needs
    encoding = [timed(lambda text=text: one.encoder.encode_query(text)) for text in texts]  # type: ignore[misc]
    queries = [one.encoder.encode_query(text) for text in texts]
    searching = [timed(lambda query=query: one.search([query], K)) for query in queries]  # type: ignore[misc]
    return {
        "encode_ms": round(median(encoding), 3),
        "search_ms": round(median(searching), 3),
        "terms": round(sum(map(len, queries)) / len(queries), 1),
    }


def built(difference: Path) -> dict[str, float]:
    """The default corpus with what was trained, from its sources to an index that answers."""
    with TemporaryDirectory() as folder:
        started = time.perf_counter()
        with counting() as report:
            encoder = LearnedEncoder(Vocabulary.default(), difference)
            outcome = index.build(Path(folder), [WordNet(), Factbook()], encoder, report=report)
        seconds = time.perf_counter() - started
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return {
        "seconds": round(seconds, 1),
        "passages": outcome.passages,
        "megabytes": round(size / 1e6, 1),
    }


def show(title: str, results: dict[str, Any]) -> None:
    some = next(iter(next(iter(results.values())).values()))
    table = Table("", *some, title=title)
    for name, ways in results.items():
        for way, groups in ways.items():
            shown = (f"{100 * group['mean']:.1f}" for group in groups.values())
            table.add_row(f"{name}, {way}", *shown)
    out.print(table)


if __name__ == "__main__":
    main()
