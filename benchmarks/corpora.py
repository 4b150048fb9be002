"""What each corpus costs, and how often it holds what a question needs.

For each corpus: passages, words, size of its index and build time. With `--data`, on questions for
training (never val): how often an answer of an OK-VQA question stands in the first 5 and 20
passages, where the thing in the photo is named in the question (rows of `okvqa/train_objects.jsonl`
replace a span by its name); and how often one of the first 4 and 20 passages states the fact that
supports an FVQA question. The control has the answers, or the fact, of another question. Passages
of several corpora are sorted by score (pooled) or taken from each corpus in turn (a quota).

Containing an answer is less than supporting it: read these numbers as upper bounds.

    python benchmarks/corpora.py --data DATA simplewiki.jsonl.xz
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import track
from rich.table import Table

from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.files import read_json
from skipqa.knowledge import Index
from skipqa.knowledge.index import build
from skipqa.knowledge.sources import BUILT_IN, gcide, open_source
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.tasks.facts import states

ANSWERS_AT = (5, 20)
FACTS_AT = (4, 20)
BATCH = 64
WORD = re.compile(r"[^\W_]+")

Holds = Callable[[Any, str], bool]


class Asked(NamedTuple):
    query: str
    target: Any  # answers, or a fact


class Found(NamedTuple):
    score: float
    text: str


def named_questions(data: Path) -> list[Asked]:
    """OK-VQA's training questions with the name of the thing instead of "this animal"."""
    questions = {row["question_id"]: row for row in _rows(data / "okvqa" / "train.jsonl")}
    asked = []
    for row in _rows(data / "okvqa" / "train_objects.jsonl"):
        question = questions[row["question_id"]]
        span = re.compile(re.escape(row["span"]), re.IGNORECASE)
        query = span.sub(lambda _, name=row["object"]: name, question["question"], count=1)  # type: ignore[misc]
        asked.append(Asked(query, tuple(question["answers"])))
    return asked


def facts(data: Path, named: bool) -> list[Asked]:
    """FVQA's training questions. `named` adds the thing in the photo to the question, for those
    whose answer is that thing."""
    rows = _rows(data / "fvqa" / "train.jsonl")
    if named:
        return [
            Asked(f"{row['question']} {row['answer']}", row["fact"])
            for row in rows
            if row["from"] == "image"
        ]
    return [Asked(row["question"], row["fact"]) for row in rows]


def contains(answers: Sequence[str], text: str) -> bool:
    """Whether one of the answers stands in the text, in whole words."""
    said = _plain(text)
    return any(_plain(answer) in said for answer in answers)


def _plain(text: str) -> str:
    return f" {' '.join(WORD.findall(text.lower()))} "


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def found_by(index: Index, queries: Sequence[str], k: int, title: str) -> list[list[Found]]:
    """The first `k` passages for each query."""
    found = []
    starts = range(0, len(queries), BATCH)
    for start in track(starts, title, console=err, transient=True):
        vectors = [index.encoder.encode_query(query) for query in queries[start : start + BATCH]]
        for hits in index.search(vectors, k):
            found.append([Found(hit.score, index.passage(hit.row).text) for hit in hits])
    return found


def pooled(lists: Sequence[list[Found]]) -> list[Found]:
    """By score, whichever corpus it is from; each has its own idf."""
    return sorted(chain.from_iterable(lists), key=lambda found: -found.score)


def in_turns(lists: Sequence[list[Found]]) -> list[Found]:
    """The first of every corpus, then the second of every corpus, ..."""
    return [found for found in chain.from_iterable(zip_longest(*lists)) if found is not None]


def rates(
    asked: Sequence[Asked], lists: Sequence[list[Found]], holds: Holds, cuts: Sequence[int]
) -> dict[str, Any]:
    targets = [question.target for question in asked]
    others = targets[1:] + targets[:1]
    result: dict[str, Any] = {"questions": len(asked)}
    for name, expected in (("first", targets), ("control", others)):
        ranks = [
            _rank(target, found[: max(cuts)], holds)
            for target, found in zip(expected, lists, strict=True)
        ]
        for k in cuts:
            result[f"{name}_{k}"] = round(sum(rank < k for rank in ranks) / len(asked), 4)
    return result


def _rank(target: Any, found: Sequence[Found], holds: Holds) -> float:
    """Of the first passage that holds the target, from 0."""
    return next((i for i, one in enumerate(found) if holds(target, one.text)), math.inf)


def built(folder: Path, spec: str) -> tuple[Index, dict[str, Any]]:
    """The index of a corpus and what it cost; one that is there already is opened."""
    costs = folder.with_suffix(".json")
    if not costs.is_file():
        err.print(f"building {Path(spec).name}")
        started, started_cpu = time.perf_counter(), time.process_time()
        outcome = build(folder, [open_source(spec)], LexicalEncoder.default())
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - started_cpu
        index = Index.open(folder)
        texts = [index.passage(row).text for row in range(len(index))]
        sizes = [file["bytes"] for segment in index.segments for file in segment.files.values()]
        measured = {
            "passages": outcome.passages,
            "words": sum(len(text.split()) for text in texts),
            "characters": sum(map(len, texts)),
            "index_bytes": sum(sizes),
            "build_seconds": round(seconds, 1),
            "cpu_seconds": round(cpu_seconds, 1),
            "bad_rows": outcome.progress.bad_rows,
        }
        costs.write_text(json.dumps(measured))
    return Index.open(folder), read_json(costs)


def measure(indexes: dict[str, Index], own: Sequence[str], data: Path) -> dict[str, Any]:
    tasks: dict[str, tuple[list[Asked], Holds, Sequence[int]]] = {
        "okvqa_named": (named_questions(data), contains, ANSWERS_AT),
        "fvqa": (facts(data, named=False), states, FACTS_AT),
        "fvqa_named": (facts(data, named=True), states, FACTS_AT),
    }
    results: dict[str, Any] = {}
    for task, (asked, holds, cuts) in tasks.items():
        queries, k = [question.query for question in asked], max(cuts)
        found = {
            name: found_by(index, queries, k, f"{task}: {name}") for name, index in indexes.items()
        }
        lists = dict(found)
        sets = {"built-in": list(own)} | ({"all": list(found)} if len(found) > len(own) else {})
        for name, members in sets.items():
            together = list(zip(*(found[member] for member in members), strict=True))
            lists[f"{name}, pooled"] = [pooled(one) for one in together]
            lists[f"{name}, quota"] = [in_turns(one) for one in together]
        results[task] = {
            name: rates(asked, one, holds, cuts)
            for name, one in track(lists.items(), f"{task}: scoring", console=err, transient=True)
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="further corpora, such as simplewiki.jsonl.xz")
    parser.add_argument("--data", type=Path, help="folder with okvqa/ and fvqa/")
    parser.add_argument("--folder", type=Path, help="keep the indexes here (default: temporary)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    own = [name for name in BUILT_IN if name != "gcide" or gcide.available()]
    specs = {**{name: name for name in own}, **{_stem(file): file for file in options.files}}
    with tempfile.TemporaryDirectory(prefix="skipqa-corpora-") as temporary:
        base = options.folder or Path(temporary)
        base.mkdir(parents=True, exist_ok=True)
        indexes, costs = {}, {}
        for name, spec in specs.items():
            indexes[name], costs[name] = built(base / name, spec)
        results: dict[str, Any] = {"corpora": costs}
        if options.data:
            results |= measure(indexes, own, options.data)
    for title, rows in results.items():
        table = Table("", *next(iter(rows.values())), title=title)
        for name, row in rows.items():
            table.add_row(name, *(str(value) for value in row.values()))
        out.print(table)
    out.print(f"written to {write_results(results, 'corpora', options.out)}")


def _stem(file: str) -> str:
    return Path(file).name.partition(".")[0]


if __name__ == "__main__":
    main()
