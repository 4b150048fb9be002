"""Recall@4 at default settings against exact search over unquantized vectors, and known-item search
with the lexical encoder compared with Okapi BM25.

Corpora: the default one (WordNet and the World Factbook) with region queries like the pipeline's,
and clustered synthetic SPLADE-like vectors.

    python benchmarks/index_recall.py
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from index_synthetic import Synthetic, SyntheticEncoder, SyntheticSource

from skipqa.costs.environment import describe
from skipqa.knowledge.bm25 import BM25, words
from skipqa.knowledge.engines.local import LocalEngine
from skipqa.knowledge.index import Index, build
from skipqa.knowledge.measure import REGIONS, percentiles, recall, timed
from skipqa.knowledge.sources.factbook import Factbook
from skipqa.knowledge.sources.wordnet import WordNet
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.vectors import NUM_TERMS, SparseRows, sum_duplicates
from skipqa.types import Hit, SparseVector

QUESTIONS = (
    "How is this drink brewed?",
    "Which country does this animal come from?",
    "What is this used for?",
    "Who invented this?",
    "What is the capital of the country with this flag?",
    "What material is this made of?",
    "Which family does this plant belong to?",
    "How large does it grow?",
)
K = 4


def oracle(rows: SparseRows, queries: Sequence[SparseVector], k: int) -> list[list[Hit]]:
    """Scores all rows in double precision from the unquantized weights, without an index."""
    found = []
    for query in queries:
        table = np.zeros(NUM_TERMS)
        table[query.terms] = query.weights
        sums = np.concatenate([[0.0], np.cumsum(table[rows.terms] * rows.weights)])
        scores = np.diff(sums[rows.offsets])
        best = np.argpartition(-scores, k)[: k + 1]
        best = best[np.lexsort((best, -scores[best]))][:k]
        found.append([Hit(int(row), float(scores[row])) for row in best if scores[row] > 1e-9])
    return found


def region_queries(index: Index, count: int) -> list[SparseVector]:
    """Five concepts weighted by probability: their names, their definitions with less weight, and
    the question. The default effort of search was chosen on queries of another seed."""
    rng = np.random.default_rng(42)
    nouns = 82_115
    encode = index.encoder.encode_query
    made = []
    for number in range(count):
        parts = [(0.3, encode(QUESTIONS[number % len(QUESTIONS)]))]
        for fraction, row in zip(
            (0.5, 0.2, 0.15, 0.1, 0.05), rng.integers(0, nouns, 5), strict=True
        ):
            passage = index.passage(int(row))
            gloss = passage.text.partition(": ")[2].partition('; "')[0]
            parts += [(fraction, encode(passage.title)), (0.3 * fraction, encode(gloss))]
        terms = np.concatenate([vector.terms for _, vector in parts])
        weights = np.concatenate([factor * vector.weights for factor, vector in parts])
        made.append(sum_duplicates(terms, weights.astype(np.float32)))
    return made


def rescored(
    hits: Sequence[Sequence[Hit]], rows: SparseRows, queries: Sequence[SparseVector]
) -> list[list[Hit]]:
    """The rows found, with scores from the unquantized weights."""
    found = []
    for query, best in zip(queries, hits, strict=True):
        table = np.zeros(NUM_TERMS)
        table[query.terms] = query.weights
        found.append([Hit(h.row, float(_dot(rows[h.row], table))) for h in best])
    return found


def _dot(vector: SparseVector, table: np.ndarray) -> float:
    return table[vector.terms] @ vector.weights


def measure(index: Index, rows: SparseRows, queries: Sequence[SparseVector]) -> dict[str, Any]:
    truth = oracle(rows, queries, K)
    groups = [queries[i : i + REGIONS] for i in range(0, len(queries), REGIONS)]
    found: dict[str, Any] = {
        "passages": len(index),
        "queries": len(queries),
        "terms_a_query": round(float(np.mean([len(query) for query in queries])), 1),
    }
    for name in ("local", "compiled"):
        engine = LocalEngine.open(index, {}, compiled=name == "compiled")
        hits = engine.search(queries, K)
        same = [
            len({h.row for h in a} & {h.row for h in b}) / len(b)
            for a, b in zip(hits, truth, strict=True)
            if b
        ]
        times = timed([lambda g=group, e=engine: e.search(g, K) for group in groups])  # type: ignore[misc]
        found[name] = {
            "effort": {name: getattr(engine.effort, name) for name in engine.effort.__slots__},
            "recall_at_4": recall(rescored(hits, rows, queries), truth),
            "same_rows_at_4": round(float(np.mean(same)), 4),
            "8_region_queries_ms": percentiles(times),
        }
    return found


def known_items(index: Index, count: int) -> dict[str, Any]:
    """How often a passage is among the four best for six of its words, in random order."""
    rng = np.random.default_rng(137)
    passages = [index.passage(row) for row in range(len(index))]
    bm25 = BM25(passages)
    found = {"lexical impacts": 0, "okapi bm25": 0}
    asked = 0
    for row in rng.permutation(len(passages)).tolist():
        content = sorted(set(words(passages[row].text)))
        if len(content) < 8:
            continue
        question = " ".join(rng.choice(content, 6, replace=False))
        hits = index.search([index.encoder.encode_query(question)], K)[0]
        found["lexical impacts"] += row in {hit.row for hit in hits}
        found["okapi bm25"] += row in {hit.row for hit in bm25.search(question, K)}
        asked += 1
        if asked == count:
            break
    return {"asked": asked, **{name: round(hits / asked, 4) for name, hits in found.items()}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=Path)
    parser.add_argument("--queries", type=int, default=400)
    args = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="skipqa-recall-") as base:
        started = time.perf_counter()
        build(Path(base) / "default", [WordNet(), Factbook()], LexicalEncoder.default())
        seconds = time.perf_counter() - started
        index = Index.open(Path(base) / "default")
        passages = [index.passage(row) for row in range(len(index))]
        rows = index.encoder.encode_passages(passages)
        results["default corpus"] = measure(index, rows, region_queries(index, args.queries))
        on_disk = sum(f["bytes"] for s in index.segments for f in s.files.values())
        results["default corpus"]["build_seconds"] = round(seconds, 1)
        results["default corpus"]["bytes_a_passage_with_text"] = round(on_disk / len(index), 1)
        results["known items"] = known_items(index, 1_000)
        data = Synthetic()
        build(Path(base) / "made", [SyntheticSource(150_000)], SyntheticEncoder(data))  # type: ignore[arg-type,list-item]
        made = Index.open(Path(base) / "made")
        queries = data.queries(args.queries, 150_000)
        results["clustered synthetic"] = measure(made, data.rows(150_000), queries)
    if args.results:
        args.results.write_text(json.dumps({**describe(), "results": results}, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
