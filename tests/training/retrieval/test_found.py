"""What training questions are given to read is what the pipeline's own parts would find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from skipqa.backbones.networks import sparse_query
from skipqa.config import RetrieveConfig
from skipqa.knowledge import Library
from skipqa.knowledge.excerpt import excerpt
from skipqa.knowledge.index import build
from skipqa.knowledge.library import merge
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.knowledge.text_query import TextQuery, encode_queries
from skipqa.language import content_words
from skipqa.training.retrieval.found import PER_JOB, SINGLE, Asked, Finder

CORPORA = {
    "animals": (
        ("bear", "A bear sleeps in winter. It eats berries and fish. Its fur is thick and brown."),
        ("heron", "A heron stands in water. It eats fish and frogs. It flies south in winter."),
        ("goat", "A goat climbs rocks. It gives milk, of which cheese is made."),
    ),
    "things": (
        ("kettle", "A kettle boils water for tea. It may whistle. Some are made of copper."),
        ("oven", "An oven bakes bread and fish. It is hot inside."),
    ),
}
CONFIG = RetrieveConfig(question_weight=1.0, excerpt_words=8, per_region=2)
QUESTIONS = (
    Asked(
        "What fish or frogs do these animals eat?", (("bear", 0.7), ("heron", 0.2), ("kettle", 0.1))
    ),
    Asked("What is this made of?", (("kettle", 0.6), ("oven", 0.4))),
    Asked("Where does it go in winter?", (("heron", 1.0),)),
    Asked("What?", ()),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder: Path = tmp_path_factory.mktemp("found")
    for name, rows in CORPORA.items():
        file = folder / f"{name}.jsonl"
        lines = (json.dumps({"title": title, "text": text}) for title, text in rows)
        file.write_text("\n".join(lines))
        build(folder / name, [JsonLines(file)], LexicalEncoder.default())
    return Library.open([f"exact:{folder / name}" for name in CORPORA])


def by_the_pipelines_parts(library: Library, asked: Asked, most: int) -> tuple[str, ...]:
    regions = [asked.shown, *([(name, 1.0)] for name, _ in asked.shown[:SINGLE])]
    written = [
        TextQuery(
            asked.text,
            " ".join(content_words(asked.text)),
            CONFIG.question_weight,
            tuple((weight, name) for name, weight in shown),
        )
        for shown in regions
    ]
    sources = library.searched({})
    encoders = [source.index.encoder for source in sources]
    encoded, _ = encode_queries(written, encoders)
    found = [
        source.index.search(queries, CONFIG.per_region)
        for source, queries in zip(sources, encoded, strict=True)
    ]
    return tuple(
        excerpt(
            library.passage(hit.row),
            encoded[hit.source][hit.query],
            encoders[hit.source],
            CONFIG.excerpt_words,
        )
        for hit in merge(sources, found, CONFIG.index_sharpness)[:most]
    )


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda one: one.text)
def test_it_finds_what_the_pipelines_parts_find(library: Library, asked: Asked) -> None:
    finder = Finder(lambda: library, None, CONFIG, torch.device("cpu"))
    (found,) = finder([asked], 4)
    assert found == by_the_pipelines_parts(library, asked, 4)


def test_questions_together_find_what_each_finds_alone(library: Library) -> None:
    finder = Finder(lambda: library, None, CONFIG, torch.device("cpu"))
    together = list(finder(QUESTIONS, 3))
    assert together == [next(iter(finder([one], 3))) for one in QUESTIONS]
    assert together[0][0] == "heron: It eats fish and frogs."
    assert list(finder(QUESTIONS * 2 * PER_JOB, 3)) == together * 2 * PER_JOB  # several jobs


def test_an_untrained_network_asks_for_the_words_of_the_question(library: Library) -> None:
    """Its terms are those of the whole question; grammar matches nothing."""
    network = sparse_query.published().eval()
    finder = Finder(lambda: library, network, CONFIG, torch.device("cpu"))
    plain = Finder(lambda: library, None, CONFIG, torch.device("cpu"))
    assert list(finder(QUESTIONS[:1], 3)) == list(plain(QUESTIONS[:1], 3))
