"""Retrieval by embedding and by late interaction: the ranking of plain loops, at the cost said."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from skipqa.costs.flops import count_flops
from skipqa.errors import UserError
from skipqa.evaluation import systems
from skipqa.knowledge import Library
from skipqa.knowledge.index import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.pipeline import Pipeline
from skipqa.state import State
from skipqa.trace import StageRecord, Trace

TEXTS = {
    "espresso": "strong black coffee brewed by forcing hot water under pressure through it",
    "coffee": "a drink made from roasted beans; it comes from Ethiopia",
    "beagle": "a small hound with short legs, bred in England for hunting hares",
    "lemon": "a yellow fruit that originated in Asia",
    "cup": "a small open container usually used for drinking",
    "tea": "a drink made by pouring hot water over dried leaves, from China",
}
QUESTION = "Where does this drink come from?"


@pytest.fixture(scope="module")
def embedded(brief: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Over six passages with embeddings, all of them found by the one query that is asked."""
    folder = tmp_path_factory.mktemp("embedded")
    corpus = folder / "corpus.jsonl"
    rows = [{"id": name, "title": name, "text": text} for name, text in TEXTS.items()]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encode = brief.backbone.encode_texts
    build(
        folder / "index",
        [JsonLines(corpus)],
        LexicalEncoder.default(),
        embed=lambda texts: encode(texts).embeddings.numpy(),
    )
    alone = brief.with_library(Library.open([folder / "index"]))
    return alone.with_config(
        regions={"max_regions": 1}, retrieve={"per_region": 4}, budget={"passages": 4}
    )


@pytest.fixture(scope="module")
def regions(embedded: Pipeline, photo: Path) -> State:
    """Up to retrieval."""
    return embedded.run(State(photo, QUESTION), stop="zoom", trace=Trace())


def names_of(state: State, pipeline: Pipeline) -> str:
    (region,) = state.regions
    return pipeline.backbone.concepts[region.concepts[0][0]].name


def unit(row: Tensor) -> list[float]:
    values = row.tolist()
    norm = math.hypot(*values)
    return [value / norm for value in values]


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_passages_are_found_by_the_inner_product(embedded: Pipeline, regions: State) -> None:
    encode, query = embedded.backbone.encode_texts, f"{QUESTION} {names_of(regions, embedded)}"
    asking = encode([query]).embeddings[0].tolist()
    stored = {
        passage.text: embedded.library.indexes["index"].embeddings([row])
        for row in range(len(embedded.library))
        for passage in [embedded.library.passage(row)]
    }
    scores = {text: dot(asking, vector[0].tolist()) for text, vector in stored.items()}  # type: ignore[index]
    expected = sorted(scores, key=lambda text: -scores[text])[:4]
    record = StageRecord("retrieve")
    found = systems.build("skip-dpr", embedded).stages["retrieve"](regions, record)
    passages = found.retrieved.passages
    assert [p.passage.text for p in passages] == expected
    assert [p.score for p in passages] == pytest.approx([scores[t] for t in expected], abs=1e-4)
    compared = 2 * 6 * embedded.backbone.widths.text
    assert record.flops == encode([query]).flops + compared


def test_late_interaction_ranks_token_by_token(embedded: Pipeline, regions: State) -> None:
    encode, query = embedded.backbone.encode_texts, f"{QUESTION} {names_of(regions, embedded)}"
    asking = [unit(row) for row in encode([query]).states[0]]
    texts = [embedded.library.passage(row).text for row in range(len(embedded.library))]
    scores = {}
    for text in texts:
        words = [unit(row) for row in encode([text]).states[0]]
        scores[text] = sum(max(dot(a, w) for w in words) for a in asking) / len(asking)
    expected = sorted(scores, key=lambda text: -scores[text])[:4]
    stage = systems.build("skip-colbert", embedded).stages["retrieve"]
    record = StageRecord("retrieve")
    passages = stage(regions, record).retrieved.passages
    assert [p.passage.text for p in passages] == expected
    assert [p.score for p in passages] == pytest.approx([scores[t] for t in expected], abs=1e-4)
    # torch counts all but the comparison with the embeddings
    counted = count_flops(lambda: stage(regions, StageRecord("retrieve")))
    assert record.flops == counted + 2 * 6 * embedded.backbone.widths.text


@pytest.mark.parametrize("name", ["skip-dpr", "skip-colbert"])
def test_nothing_but_retrieval_differs(embedded: Pipeline, photo: Path, name: str) -> None:
    system = systems.build(name, embedded)
    assert system.config == embedded.config
    assert set(system.replaced) == {"retrieve"}
    answer = system.answer(photo, QUESTION)
    assert answer.trace["retrieve"].kept == 4
    torch.testing.assert_close(
        answer.state.kept.saliency, embedded.answer(photo, QUESTION).state.kept.saliency
    )
    assert system.answer(photo, QUESTION).text == answer.text


@pytest.mark.parametrize("name", ["skip-dpr", "skip-colbert"])
def test_an_index_without_embeddings_is_refused(brief: Pipeline, name: str) -> None:
    with pytest.raises(UserError, match="the index wordnet has no embeddings: build it with --emb"):
        systems.build(name, brief)
