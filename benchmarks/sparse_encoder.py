"""What training adds to retrieval: Pocket-KB's validation questions, lexical and learned.

With the name given: is a gold passage of the first step among the first four when the entity's
name is put before the question ("name_in_text"), or its terms are added to it ("name_as_terms")?
Questions whose entity and relation no training question has are counted separately. The same for
held-out wordings, and for held-out fields of the Factbook in such wordings. Through the pipeline:
the same for what the photo shows, by regions, by one query for all kept tokens, and by one for the
whole image. Also the information of the concept prior, and how long the default index takes to
build with the trained encoder, and its bytes.

    python benchmarks/sparse_encoder.py --pocket-kb FOLDER --index FOLDER --components FOLDER
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from common import ask, look, opened
from rich.progress import track
from rich.table import Table

from skipqa import components as trained
from skipqa.backbones import concepts
from skipqa.backbones.presets.pocket import Pocket
from skipqa.backbones.text_encoder import MiniLm
from skipqa.cli.console import counting, err, out, prepare_process
from skipqa.config import RegionsConfig, RetrieveConfig, preset
from skipqa.costs.environment import write_results
from skipqa.evaluation.statistics import mean_interval
from skipqa.knowledge import Index, Library, index
from skipqa.knowledge.sources import Source
from skipqa.knowledge.sources.factbook import Factbook
from skipqa.knowledge.sources.wordnet import WordNet
from skipqa.knowledge.text_query import weighted_sum
from skipqa.knowledge.trained_query import QueryNetwork, TrainedQueryEncoder
from skipqa.knowledge.vocabulary import Vocabulary
from skipqa.pipeline import load
from skipqa.stages.prune import ConceptScorer, Prune
from skipqa.stages.regions import ClusterProposer, FindRegions
from skipqa.stages.retrieve import ConceptQuerier, Retrieve
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.training.retrieval import about, concept_prior
from skipqa.training.retrieval.paraphrases import held_out_wordings
from skipqa.training.retrieval.queries import from_fields
from skipqa.training.retrieval.query import HELD_OUT_SOURCES
from skipqa.types import Budget, Region, SparseVector

K = 4
Row = dict[str, Any]
Hits = dict[str, list[bool]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pocket-kb", type=Path, required=True, help="as built")
    parser.add_argument(
        "--index", type=Path, required=True, help="wordnet, factbook and its passages, in one"
    )
    parser.add_argument(
        "--components", type=Path, required=True, help="sparse_query, concept_prior"
    )
    parser.add_argument("--earlier", type=Path, help="others to compare, with the name given")
    parser.add_argument("--photos", type=int, default=300, help="questions through the pipeline")
    parser.add_argument("--split", choices=("train", "val"), default="val")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    learned = trained.load(options.components, preset="pocket")
    assert learned.sparse_query is not None
    folders = {"earlier": options.earlier, "learned": options.components}
    folders = {name: folder for name, folder in folders.items() if folder is not None}
    weights = {"lexical": None} | {
        name: folder / "sparse_query.safetensors" for name, folder in folders.items()
    }
    # Many questions are asked often: their terms are encoded once, except where that is timed.
    indexes, uncached = (
        {
            name: Index.open(options.index, trained_query=path, query_cache=size)
            for name, path in weights.items()
        }
        for size in (1 << 20, 0)
    )
    rows = read(options.pocket_kb, options.split)
    seen = {(row["entity"], row["relation"]) for row in read(options.pocket_kb, "train")}

    results: dict[str, Any] = {
        "questions": len(rows),
        "files": {
            path.name: path.stat().st_size
            for name in ("sparse_query", "concept_prior")
            if (path := options.components / f"{name}.safetensors").exists()
        },
        "query": {name: of_queries(rows[:200], one) for name, one in uncached.items()},
    }
    asked = {
        "named": rows,
        "unseen_words": reworded(rows),
        "unseen_words_of_fields": of_fields(indexes["lexical"], options.seed),
    }
    for what, some in asked.items():
        results[what] = {name: named(some, seen, one) for name, one in indexes.items()}
        show(f"name given, {what}", results[what])
    results["concept_prior"] = prior_information(options.pocket_kb, folders, options.seed)
    results["build"] = built(learned.sparse_query)
    if options.photos:
        chosen = random.Random(options.seed).sample(rows, min(options.photos, len(rows)))
        for what, some in (("pipeline", chosen), ("pipeline_unseen_words", one_each(chosen))):
            results[what] = piped(some, options.pocket_kb, indexes, learned)
            show(f"through the {what}", results[what])
    err.print(f"written to {write_results(results, 'sparse_encoder', options.out)}")


def read(folder: Path, split: str) -> list[Row]:
    lines = (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["hops"]]


def reworded(rows: Sequence[Row]) -> list[Row]:
    """What is asked of each entity, in all the wordings that training never sees."""
    wanted = {(row["entity"], row["relation"], *row["hops"][0]): row for row in rows}
    return [
        {**row, "question": text}
        for row in wanted.values()
        for text in held_out_wordings(row["question"], row["relation"], row["category"])
    ]


def one_each(rows: Sequence[Row]) -> list[Row]:
    """Each row in one such wording, in turn; those that have none are left out."""
    found = [
        (row, held_out_wordings(row["question"], row["relation"], row["category"])) for row in rows
    ]
    return [
        {**row, "question": texts[place % len(texts)]}
        for place, (row, texts) in enumerate(found)
        if texts
    ]


def of_fields(one: Index, seed: int) -> list[Row]:
    """Held-out fields of countries, each in one such wording."""
    every = (one.passage(row) for row in range(len(one)))
    found = from_fields((passage for passage in every if passage.source == "factbook"), seed)
    return [
        {"name": q.name, "question": q.text, "hops": [q.gold], "category": "country",
         "entity": q.name, "relation": q.gold[0].rpartition(":")[2].partition("#")[0]}
        for q in found
        if q.source in HELD_OUT_SOURCES
    ]  # fmt: skip


def prior_information(pocket_kb: Path, folders: Mapping[str, Path], seed: int) -> dict[str, Any]:
    """The information about held-out training entities, in nats."""
    text = MiniLm()
    classes = concepts.load(lambda names: text.encode(names).embeddings).entries
    questions = list(about.from_pocket_kb(pocket_kb, 1, seed))
    known = concept_prior.nameable(classes, (), questions, frozenset())
    asked, _ = concept_prior.prepare(questions, known, text.network, text.tokenizer)
    found = {}
    for name, folder in folders.items():
        if (module := trained.load(folder, preset="pocket").concept_prior) is not None:
            found[name] = concept_prior.measure(module, asked)
    return found


def named(rows: Sequence[Row], seen: set[tuple[str, str]], one: Index) -> dict[str, Any]:
    """Recall@K by category, over all, and over what is new; for both ways to give the name. By
    relation where its terms are added."""
    encoder = one.encoder

    def name_in_text(row: Row) -> SparseVector:
        return encoder.encode_query(f"{row['name']}: {row['question']}")

    def name_as_terms(row: Row) -> SparseVector:
        name = encoder.encode_terms(row["name"])
        return weighted_sum([(1.0, name), (1.0, encoder.encode_query(row["question"]))])

    found: dict[str, Any] = {}
    by_relation: Hits = {}
    for query in (name_in_text, name_as_terms):
        hits: Hits = {}
        for row in track(rows, query.__name__.replace("_", " "), console=err):
            new = (row["entity"], row["relation"]) not in seen
            groups = (row["category"], "all", *(["new"] if new else []))
            rows_found = [h.row for h in one.search([query(row)], K)[0]]
            count(hits, groups, row, rows_found, one)
            if query is name_as_terms:
                count(by_relation, [row["relation"]], row, rows_found, one)
        found[query.__name__] = summary(hits)
    return found | {"by_relation": summary(by_relation)}


def piped(
    rows: Sequence[Row], folder: Path, indexes: dict[str, Index], learned: trained.Components
) -> dict[str, Any]:
    """Recall@K for what the photo shows."""
    pipeline = load(index=indexes["lexical"].folder)
    backbone, config = pipeline.backbone, pipeline.config
    assert isinstance(backbone, Pocket)
    # Settings were chosen for both together; either alone keeps the default where that is better.
    chosen, default = preset("pocket", learned.settings).retrieve, RetrieveConfig()
    variants: dict[str, tuple[Index, RetrieveConfig, Any]] = {
        "lexical": (indexes["lexical"], default, None),
        "learned terms": (indexes["learned"], default, None),
        "concept_prior": (
            indexes["lexical"],
            replace(chosen, question_weight=default.question_weight),
            learned.concept_prior,
        ),
        "both": (indexes["learned"], chosen, learned.concept_prior),
    }
    allowed = Budget(config.budget.kept_tokens(config.encode.num_tokens), K)
    prune = Prune(ConceptScorer(config.prune, backbone))
    cluster = ClusterProposer()
    many, single = (
        FindRegions(rule, cluster) for rule in (config.regions, RegionsConfig(max_regions=1))
    )
    hits: dict[str, Hits] = {}
    with opened(folder / "photos.zip") as photos:
        for row in track(rows, "through the pipeline", console=err):
            image, record = photos[row["image"]](), StageRecord("")
            state = State(
                image,
                row["question"],
                question=ask(backbone, row["question"]),
                tokens=look(backbone, image),
                budget=allowed,
            )
            state = prune(state, record)
            whole = state.tokens.overview.topk(config.regions.concepts)
            shown = tuple(zip(whole.indices.tolist(), whole.values.tolist(), strict=True))
            asking: dict[str, tuple[Region, ...]] = {
                "regions": many(state, record).regions,
                "kept tokens": single(state, record).regions,
                "picture": (Region((0.0, 0.0, 1.0, 1.0), (0,), shown, 1.0),),
            }
            groups = ("all", group_of(row))
            for variant, (one, settings, head) in variants.items():
                question = state.question
                if head is not None:
                    projected = head.of_concept(backbone.concepts.embeddings)
                    prior = head.prior(question.embedding, projected)
                    question = replace(question, concept_prior=prior)
                for by, regions in asking.items():
                    settings = replace(settings, per_region=K if by == "regions" else 4 * K)
                    retrieve = Retrieve(
                        ConceptQuerier(settings, backbone), Library({"all": one}), settings
                    )
                    asked = state.add(question=question, regions=regions)
                    found = [p.row for p in retrieve(asked, record).retrieved.passages]
                    count(hits.setdefault(f"{variant}, {by}", {}), groups, row, found, one)
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


def built(delta: Path) -> dict[str, float]:
    """The default corpus with what was trained, from its sources to an index that answers."""
    with TemporaryDirectory() as folder:
        started = time.perf_counter()
        with counting() as report:
            sources: list[Source] = [WordNet(), Factbook()]
            execution = index.Execution(report)
            encoder = TrainedQueryEncoder(Vocabulary.default(), QueryNetwork(delta))
            outcome = index.build(Path(folder), sources, encoder, execution=execution)
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
    for name, measured in results.items():
        for kind, groups in measured.items():
            if kind == "by_relation":
                continue
            shown = (f"{100 * group['mean']:.1f}" for group in groups.values())
            table.add_row(f"{name}, {kind}", *shown)
    out.print(table)


if __name__ == "__main__":
    main()
