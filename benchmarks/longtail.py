"""Does asking a knowledge base close the gap between popular and long-tail things (SKIP-ADR)?

The library is the default one and Pocket-KB's passages without those about long-tail entities, of
which the default corpus says no more than a definition. The source is a real SPARQL engine on
loopback, in a process of its own, with the facts of all entities as Wikidata has them: triples, not
passages. Long-tail questions about entities that are seen are compared with popular ones; a popular
question counts by how many long-tail ones there are of its category and relation, so that the gap
is one of popularity and not of what is asked. Questions on the wording of product descriptions are
left out: no triple states those.

Both systems share all stages up to retrieval. `--split held-out` asks training rows whose photos
nothing was trained on, to choose settings with `--set`. Answers are kept in `--work`; a stopped run
goes on there.

    python benchmarks/longtail.py --pocket-kb FOLDER --data DATA --work FOLDER
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from common import opened
from rich.progress import track
from rich.table import Table
from sparql_endpoint import Triples

from skipqa.cli.console import err, out, prepare_process
from skipqa.config import read_settings
from skipqa.costs.environment import write_results
from skipqa.data.held_out import pocket_kb_split
from skipqa.data.pocket_kb.entities import DESCRIPTION, PLACED, describe
from skipqa.evaluation.records import read_back
from skipqa.evaluation.reports.thin_coverage import Mention, thin_things
from skipqa.evaluation.statistics import LEVEL, RESAMPLES, mean_interval, paired_bootstrap
from skipqa.files import read_jsonl, write_jsonl
from skipqa.knowledge.coverage import name_key
from skipqa.knowledge.index.build import build
from skipqa.knowledge.on_demand.cache import Cache
from skipqa.knowledge.on_demand.sources import Sources
from skipqa.knowledge.on_demand.sparql import SparqlSource
from skipqa.knowledge.sources import open_source
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.pipeline import Pipeline, load
from skipqa.state import State
from skipqa.tasks.example import Example
from skipqa.tasks.pocket_kb import POCKET_KB
from skipqa.trace import Trace

CATEGORIES = ("dog", "cat", "flower", "grocery")
# The relations of Pocket-KB as properties of a knowledge base
PROPERTIES = {
    "origin": "country of origin",
    "native": "indigenous to",
    "raised": "place of first cultivation",
    "brand": "country of the manufacturer",
    "family": "family",
    "genus": "genus",
    "height": "maximum shoulder height in centimetres",
    "weight": "maximum weight in kilograms",
    "life": "maximum life expectancy in years",
    "group": "breed group",
    "character": "temperament",
    "brushing": "brushing frequency",
    "shedding": "shedding",
    "eyes": "eye colour",
    "coat": "coat",
}
KINDS = {"dog": "dog breed", "cat": "cat breed", "flower": "flowering plant", "grocery": "food"}
ALL_ANSWERS = frozenset({*PLACED, "character"})  # of these, every accepted answer is a value
Record = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pocket-kb", type=Path, required=True, help="made by `skipqa data`")
    parser.add_argument("--data", type=Path, required=True, help="what it was made of")
    parser.add_argument("--work", type=Path, required=True, help="folder for index and answers")
    parser.add_argument("--split", choices=("held-out", "val"), default="val")
    parser.add_argument("--limit", type=int, help="questions of each group")
    parser.add_argument("--set", action="append", default=[], help="settings, as of `skipqa ask`")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    options.work.mkdir(parents=True, exist_ok=True)
    tail = tail_entities(options.pocket_kb)
    groups = questions(options.pocket_kb, options.split, options.limit, options.seed)
    index = corpus(options.pocket_kb, tail, options.work / "index")
    triples = knowledge_base(options.data, options.seed, options.work / "facts.nt")
    with endpoint(triples) as url:
        settings = read_settings(options.set)
        base = load(index=["default", index], overrides=settings, report=err.print)
        sources = Sources([SparqlSource(url, "facts")], Cache(options.work / "told.sqlite"))
        _ = base.library.coverage  # read the titles now
        adr = base.with_sources(sources)
        name = "-".join([options.split, *(one.replace("/", "_") for one in options.set)])
        records = ask(base, adr, groups, options.work / f"answers-{name}.jsonl", options.pocket_kb)
        names = sorted({one for r in records.values() for one in r["unknown"]})
        ranked = prioritised(records.values(), base.library.coverage.passages)
        latency = cache_latency(SparqlSource(url, "facts"), names[:100], options.work)
    found = judged(groups, records, tail)
    results = {
        "split": options.split,
        "settings": options.set,
        **found,
        "active_learning": ranked,
        "latency_ms": latency,
    }
    show(results)
    if options.split == "val":
        path = write_results(results, "longtail", options.out, base.components.checksums())
        err.print(f"written to {path}")


def tail_entities(folder: Path) -> dict[str, str]:
    """Long-tail entities of the four kinds, each with its name."""
    rows = (row for split in ("train", "val") for row in read_jsonl(folder / f"{split}.jsonl"))
    return {
        row["entity"]: row["name"]
        for row in rows
        if "longtail" in row["subset"] and row["category"] in CATEGORIES
    }


def questions(folder: Path, split: str, limit: int | None, seed: int) -> dict[str, list[Example]]:
    """Long-tail and popular questions that a passage answers, about entities that are seen, of
    categories and relations that both groups have."""
    examples = [
        one
        for one in POCKET_KB.load(folder, "val" if split == "val" else "train")
        if one.category in CATEGORIES
        and one.gold
        and one.record["relation"] != DESCRIPTION
        and "unseen" not in one.subsets
        and (split == "val" or pocket_kb_split(one.record) == "held-out")
    ]
    groups: dict[str, list[Example]] = {"longtail": [], "popular": []}
    for one in examples:
        groups["longtail" if "longtail" in one.subsets else "popular"].append(one)
    both = set.intersection(*({stratum(one) for one in some} for some in groups.values()))
    for name, some in groups.items():
        groups[name] = [one for one in some if stratum(one) in both]
        random.Random(seed).shuffle(groups[name])
        groups[name] = groups[name][:limit]
    return groups


def stratum(example: Example) -> tuple[str, str]:
    return str(example.category), example.record["relation"]


def corpus(folder: Path, tail: Mapping[str, str], index: Path) -> Path:
    """An index of Pocket-KB's passages without those about long-tail entities."""
    if not (index / "manifest.json").is_file():
        rows = read_jsonl(folder / "passages.jsonl")
        kept = [row for row in rows if row["id"].rpartition(":")[0] not in tail]
        err.print(f"{len(kept):,} of {len(rows):,} passages are not about long-tail entities")
        path = index.with_name("passages.jsonl")
        write_jsonl(path, kept)
        build(index, [open_source(str(path))], LexicalEncoder.default())
    return index


def knowledge_base(data: Path, seed: int, path: Path) -> Path:
    """The facts of all entities, popular and rare, as triples."""
    triples = Triples()
    things = frozenset({"instance of", *(PROPERTIES[relation] for relation in PLACED)})
    for one in describe(data / "entities", seed):
        facts: dict[str, list[str]] = {"instance of": [KINDS[one.category]]}
        for statement in one.statements:
            if statement.relation in PROPERTIES:
                every = statement.relation in ALL_ANSWERS
                texts = statement.texts if every else statement.texts[:1]
                facts.setdefault(PROPERTIES[statement.relation], []).extend(texts)
        triples.add(one.names, facts, things=things)
    path.write_text("\n".join(triples.lines) + "\n", encoding="utf-8")
    return path


@contextmanager
def endpoint(triples: Path) -> Iterator[str]:
    script = Path(__file__).with_name("sparql_endpoint.py")
    command = [sys.executable, str(script), str(triples)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running.stdout.readline().strip()
        finally:
            running.terminate()


def ask(
    base: Pipeline,
    adr: Pipeline,
    groups: Mapping[str, Sequence[Example]],
    path: Path,
    folder: Path,
) -> dict[Any, Record]:
    records = read_back(path)
    # By turns: a machine that is slow for a while is so for both groups, and a run that was
    # stopped early has the questions of one with a lower limit.
    turns = itertools.chain.from_iterable(itertools.zip_longest(*groups.values()))
    todo = [one for one in turns if one is not None and one.id not in records]
    with opened(folder / "photos.zip") as images, path.open("a", encoding="utf-8") as file:
        for example in track(todo, "asking", console=err):
            record = answered(base, adr, example, State(images[example.image](), example.question))
            file.write(json.dumps(record) + "\n")
            file.flush()
            records[record["question_id"]] = record
    return {one.id: records[one.id] for some in groups.values() for one in some}


def answered(base: Pipeline, adr: Pipeline, example: Example, state: State) -> Record:
    """Both systems on one question; a draft that is accepted is the answer of both."""
    drafted = base.run(state, stop="draft")
    record: Record = {"question_id": example.id, "unknown": [], "names": []}
    if drafted.draft.accepted:
        score = POCKET_KB.score(example, drafted.draft.answer)
        return {**record, "route": "draft", "skip": score, "skip-adr": score}
    found = base.run(drafted, start="budget", stop="retrieve")
    passages = None
    for name, system in (("skip", base), ("skip-adr", adr)):
        trace = Trace()
        state = system.run(found, start="consult", stop="consult", trace=trace)
        if state.retrieved.passages != passages:  # else the answer is the same
            passages = state.retrieved.passages
            final = system.run(state, start="verify")
        record |= {
            name: POCKET_KB.score(example, final.answer.text),
            f"{name} answer": final.answer.text,
            f"{name} confidence": final.answer.confidence,
            f"{name} ms": trace["consult"].ms,
            f"{name} evidence": [p.passage.id for p in final.verified.passages],
        }
    consulted = state.consulted
    return {
        **record,
        "route": "full",
        "names": list(consulted.names),
        "unknown": list(consulted.unknown),
        "told": [p.passage.id for p in consulted.told],
        "late": list(consulted.late),
        "warnings": list(consulted.warnings),
        "entity": example.record["name"],
    }


def cache_latency(source: SparqlSource, names: Sequence[str], work: Path) -> Record:
    """Of asking for one name: of the engine, and of the cache."""
    path = work / "latency.sqlite"
    path.unlink(missing_ok=True)
    timed: dict[str, list[float]] = {"asked": [], "cached": []}
    sources = Sources([source], Cache(path))
    for kind in timed:
        for name in names:
            start = time.perf_counter()
            sources.ask([name], 10.0)
            timed[kind].append((time.perf_counter() - start) * 1_000)
    return {kind: spread(values) for kind, values in timed.items()}


def spread(values: Sequence[float]) -> Record:
    if not values:
        return {"count": 0}
    return {
        "count": len(values),
        "median": statistics.median(values),
        "p95": float(np.quantile(values, 0.95)),
    }


def judged(
    groups: Mapping[str, Sequence[Example]], records: Mapping[Any, Record], tail: Mapping[str, str]
) -> Record:
    scores = {
        (group, system): np.array([records[one.id][system] for one in some])
        for group, some in groups.items()
        for system in ("skip", "skip-adr")
    }
    weights = matched(groups)
    looked_up = [r for r in records.values() if r["route"] == "full"]
    nothing = [r["skip-adr ms"] - r["skip ms"] for r in looked_up if not r["unknown"]]
    something = [r["skip-adr ms"] - r["skip ms"] for r in looked_up if r["unknown"]]
    return {
        "questions": {group: len(some) for group, some in groups.items()},
        "looked_up": len(looked_up),
        "accuracy": {
            f"{group} {system}": asdict(mean_interval(values, bounds=(0, 1)))
            for (group, system), values in scores.items()
        },
        "gain": {
            group: asdict(paired_bootstrap(scores[group, "skip-adr"], scores[group, "skip"]))
            for group in groups
        },
        "popular_matched": float(np.average(scores["popular", "skip"], weights=weights)),
        "gap_closed": closed(scores, weights),
        "detector": detector(groups, records, tail),
        "overhead_ms": {"nothing unknown": spread(nothing), "something unknown": spread(something)},
        "late": sum(bool(r.get("late")) for r in looked_up),
        "warnings": sorted({line for r in looked_up for line in r["warnings"]}),
    }


def matched(groups: Mapping[str, Sequence[Example]]) -> np.ndarray:
    """How much each popular question counts: strata as often as among the long-tail ones."""
    tail, popular = (Counter(map(stratum, groups[name])) for name in ("longtail", "popular"))
    return np.array([tail[stratum(one)] / popular[stratum(one)] for one in groups["popular"]])


def closed(scores: Mapping[tuple[str, str], np.ndarray], weights: np.ndarray) -> Record:
    """The fraction of the gap that is closed, with a bootstrap interval over the questions of both
    groups."""
    tail, adr = scores["longtail", "skip"], scores["longtail", "skip-adr"]
    popular = scores["popular", "skip"]
    generator = np.random.default_rng(0)

    def fraction(rows: np.ndarray, others: np.ndarray) -> tuple[float, float]:
        counted = weights[others].sum()
        gap = float(popular[others] @ weights[others] / counted - tail[rows].mean())
        return float((adr[rows] - tail[rows]).mean()) / gap if gap > 0 else math.nan, gap

    whole, gap = fraction(np.arange(len(tail)), np.arange(len(popular)))
    drawn = [
        fraction(
            generator.integers(len(tail), size=len(tail)),
            generator.integers(len(popular), size=len(popular)),
        )[0]
        for _ in range(RESAMPLES)
    ]
    low, high = np.nanquantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    found = {"fraction": whole, "low": float(low), "high": float(high), "gap": gap}
    return {**found, "resamples_without_a_gap": int(np.isnan(drawn).sum())}


def detector(
    groups: Mapping[str, Sequence[Example]], records: Mapping[Any, Record], tail: Mapping[str, str]
) -> Record:
    """Of the names that are Pocket-KB's entities: are those unknown that the library lacks?"""
    lacking = {name_key(name) for name in tail.values()}
    every = {name_key(one.record["name"]) for some in groups.values() for one in some} | lacking
    asked = Counter[str]()
    for record in records.values():
        for name in record["names"]:
            kind = "lacking" if name_key(name) in lacking else "covered"
            if name_key(name) in every:
                asked[f"{kind} {'unknown' if name in record['unknown'] else 'known'}"] += 1
            elif name in record["unknown"]:
                asked["others unknown"] += 1
    right, wrong = asked["lacking unknown"], asked["covered unknown"]
    missed = asked["lacking known"]
    about = [records[one.id] for one in groups["longtail"] if records[one.id]["route"] == "full"]
    named = [any(name_key(n) == name_key(r["entity"]) for n in r["unknown"]) for r in about]
    return {
        "precision": right / max(1, right + wrong),
        "recall": right / max(1, right + missed),
        "asked": dict(asked),
        "longtail questions whose thing was asked for": float(np.mean(named)),
    }


def prioritised(records: Iterable[Record], passages: Callable[[str], int]) -> Record:
    """Would `skipqa report coverage` have named first what gains most? It sees the answers of SKIP
    alone, and no label; what was gained is that of SKIP-ADR."""
    mentions, gained = [], Counter[str]()
    for record in records:
        if record["names"]:
            name = record["names"][0]  # what the question is most probably about
            mentions.append(Mention(name, 1.0, 1 - (record["skip confidence"] or 0.0)))
            gained[name_key(name)] += record["skip-adr"] - record["skip"]
    things = thin_things(mentions, passages)
    gains = [gained[name_key(thing.name)] for thing in things]
    third = math.ceil(len(things) / 3)
    return {
        "things": len(things),
        "gained": sum(gains),
        "by_the_first_third": sum(gains[:third]),
        "by_the_last_third": sum(gains[-third:]),
        "gained_by_others": sum(gained.values()) - sum(gains),
    }


def show(results: Mapping[str, Any]) -> None:
    table = Table("questions", "n", "skip", "skip-adr", "gain")
    for group, count in results["questions"].items():
        cells = [results["accuracy"][f"{group} {system}"] for system in ("skip", "skip-adr")]
        table.add_row(
            group,
            str(count),
            *(points(cell["mean"], cell) for cell in cells),
            points(results["gain"][group]["difference"], results["gain"][group], "+"),
        )
    out.print(table)
    gap = results["gap_closed"]
    out.print(
        f"popular, matched: {100 * results['popular_matched']:.1f}; gap {100 * gap['gap']:.1f}; "
        f"closed {100 * gap['fraction']:.0f} % ({100 * gap['low']:.0f} to {100 * gap['high']:.0f})"
    )
    more = ("detector", "overhead_ms", "latency_ms", "active_learning", "late", "warnings")
    for name in more:
        out.print(f"{name}: {results[name]}", highlight=False)


def points(mean: float, interval: Mapping[str, float], sign: str = "") -> str:
    low, high = 100 * interval["low"], 100 * interval["high"]
    return f"{100 * mean:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


if __name__ == "__main__":
    main()
