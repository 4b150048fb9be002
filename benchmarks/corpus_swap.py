"""Is another domain a matter of another corpus? One system, two domains, two corpora.

Questions of Pocket-KB's `val` that need one passage: about dogs, flowers and groceries, whose
passages are Pocket-KB's own, and about countries, whose passages are the Factbook's. Each is asked
over each corpus alone, by the same pipeline object with nothing but its library replaced.

    python benchmarks/corpus_swap.py --pocket-kb FOLDER
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import random
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track
from rich.table import Table

from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.evaluation.records import Record, make_record
from skipqa.evaluation.reports.markdown import percent, points
from skipqa.evaluation.statistics import Comparison, mean_interval, paired_bootstrap
from skipqa.knowledge import Library
from skipqa.knowledge.default import built_default
from skipqa.pipeline import Pipeline, load
from skipqa.tasks.example import Example
from skipqa.tasks.pocket_kb import POCKET_KB

# What is asked about, and the corpus that has its passages
DOMAINS = {"things": ("dog", "flower", "grocery"), "countries": ("country",)}
OWN = {"things": "pocket-kb", "countries": "factbook"}
LEFT_OUT = {"crowded", "multihop"}  # several things, several corpora


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--pocket-kb", type=Path, required=True, help="made by `skipqa data`, with its index/"
    )
    parser.add_argument("--questions", type=int, default=100, help="of each domain")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    folder: Path = options.pocket_kb
    corpora = {"pocket-kb": folder / "index", "factbook": built_default()["factbook"]}
    base = load(index=corpora["pocket-kb"])
    query = base.components.sparse_query
    libraries = {name: Library.open([at], trained_query=query) for name, at in corpora.items()}
    systems = {name: base.with_library(library) for name, library in libraries.items()}
    results: dict[str, Any] = {
        "seed": options.seed,
        "system": "skip",
        "corpora": {name: about(system) for name, system in systems.items()},
        "domains": {},
    }
    examples = POCKET_KB.load(folder, "val")
    for name in DOMAINS:
        drawn = draw(examples, name, options.questions, options.seed)
        results["domains"][name] = measure(systems, drawn, folder / "photos.zip", name)
    show(results["domains"])
    path = write_results(results, "corpus_swap", options.out, base.components.checksums())
    err.print(f"written to {path}")


def about(system: Pipeline) -> dict[str, Any]:
    """What answers over a corpus: equal but for the passages."""
    config = json.dumps(dataclasses.asdict(system.config), sort_keys=True)
    components = json.dumps(system.components.checksums(), sort_keys=True)
    return {
        "passages": len(system.library),
        "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
        "components_sha256": hashlib.sha256(components.encode()).hexdigest(),
    }


def draw(examples: Sequence[Example], domain: str, count: int, seed: int) -> list[Example]:
    of_domain = [
        one
        for one in examples
        if one.category in DOMAINS[domain] and one.gold and LEFT_OUT.isdisjoint(one.subsets)
    ]
    random.Random(seed).shuffle(of_domain)
    return of_domain[:count]


def measure(
    systems: dict[str, Pipeline], examples: Sequence[Example], photos: Path, domain: str
) -> dict[str, Any]:
    records: dict[str, list[Record]] = {name: [] for name in systems}
    with zipfile.ZipFile(photos) as archive:
        for example in track(examples, domain, console=err):
            photo = archive.read(example.image)
            for name, system in systems.items():
                answer = system.answer(BytesIO(photo), example.question)
                records[name].append(make_record(example, answer, POCKET_KB))
    scores = {name: [record["score"] for record in found] for name, found in records.items()}
    own = OWN[domain]
    [other] = set(systems) - {own}
    return {
        "categories": list(DOMAINS[domain]),
        "questions": len(examples),
        "own_corpus": own,
        "accuracy": {name: asdict(mean_interval(values)) for name, values in scores.items()},
        "own_less_other": asdict(paired_bootstrap(scores[own], scores[other])),
        "fast_path_rate": {
            name: float(np.mean([record["route"] == "draft" for record in found]))
            for name, found in records.items()
        },
    }


def show(domains: dict[str, Any]) -> None:
    table = Table("domain", *OWN.values(), "own corpus less the other")
    for name, found in domains.items():
        cells = [percent(found["accuracy"][corpus]) for corpus in OWN.values()]
        less = points(Comparison(**found["own_less_other"]))
        table.add_row(f"{name} ({found['questions']})", *cells, less)
    out.print(table)


if __name__ == "__main__":
    main()
