"""A region query learns what names cannot tell, from records of things that share their names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import small_world
import tiny_training
import torch
import torch.nn.functional as F

from skipqa.errors import UserError
from skipqa.knowledge import Library
from skipqa.knowledge.index.build import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.nn.region_query import SparseRegionQuery
from skipqa.pipeline import Pipeline
from skipqa.training.pathway import region_query
from skipqa.training.pathway.context import TrainingContext
from skipqa.training.pathway.gains import LARGEST, Gains
from skipqa.training.pathway.records import PassageTable, Records
from skipqa.training.pathway.region_query import SCALE, QueryInputs, Variant, ask_by_names
from skipqa.training.pathway.saliency_quality import AT, RECALL
from skipqa.training.pathway.stage3_region_query import (
    RegionQueryPart,
    RegionQueryTraining,
    find_gold,
)
from skipqa.training.run import Run

QUESTIONS, GRID = 50, 4
# Two things that a region names "espresso", told apart by features alone. The query by names
# scores all passages of a thing alike, and those of one of the two come first.
THINGS = ("ristretto", "lungo")
SIDES = ("north", "south", "east", "west")
assert len(SIDES) == AT
QUESTION = "How is it made?"


@dataclass(frozen=True)
class Settings:
    region_query: RegionQueryTraining = field(default_factory=RegionQueryTraining)


def settings(variant: Variant = "A", steps: int = 40) -> Settings:
    train = RegionQueryTraining(
        steps=steps, lr=1e-2, warmup=0, batch=8, hidden=16, variant=variant, sparsity=1e-3
    )
    return Settings(train)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("same-names")
    passages = [
        {"id": f"{thing}-{side}", "title": "espresso", "text": f"Of {thing} the {side}."}
        for thing in THINGS
        for side in SIDES
    ]
    tiny_training.write_lines(folder / "passages.jsonl", passages)
    torch.manual_seed(0)
    build(
        folder / "index",
        [JsonLines(folder / "passages.jsonl")],
        LexicalEncoder.default(),
        embed=lambda texts: F.normalize(torch.randn(len(texts), 384), dim=1).numpy(),
    )
    return Library.open([folder / "index"])


@pytest.fixture(scope="module")
def context(
    pipeline: Pipeline, library: Library, tmp_path_factory: pytest.TempPathFactory
) -> TrainingContext:
    here = Pipeline(replace(pipeline.parts, library=library))
    small_world.Shared.pipeline = here
    folder = tmp_path_factory.mktemp("run")
    return TrainingContext(
        records_of(here), here, here.components, Run(folder), small_world.workers(), folder
    )


def records_of(pipeline: Pipeline) -> Records:
    """One region each, of four tokens; even questions ask about the first thing."""
    library, V = pipeline.library, GRID * GRID
    names = [concept.name for concept in pipeline.backbone.concepts.entries]
    espresso = names.index("espresso")
    rows = list(range(len(THINGS) * AT))
    generator = torch.Generator().manual_seed(1)
    shown = torch.randn(2, pipeline.backbone.widths.vision, generator=generator)
    which = torch.arange(QUESTIONS) % 2
    noise = torch.randn(QUESTIONS, AT, shown.shape[1], generator=generator)
    about = [
        {
            "question": QUESTION,
            "words": ["made"],
            "span": None,
            "information": 0.0,
            "seen": [],
            "probs": [],
            "image": "nowhere.png",
            "category": "drink",
            "source": "pocket-kb",
            "split": "train" if i < QUESTIONS - 10 else "held-out",
            "regions": [[(espresso, 0.9)]],
            "draft": "",
            "confidence": 0.0,
            "candidates": [("lungo", math.log(0.5))],
            "abstain_prob": 0.0,
            "excerpts": [""] * len(rows),
            "gold": [f"passages:{THINGS[i % 2]}-{side}" for side in SIDES],
            "gold_rows": rows[AT * (i % 2) :][:AT],
        }
        for i in range(QUESTIONS)
    ]
    region_of = torch.full((QUESTIONS, V), -1, dtype=torch.int8)
    region_of[:, :AT] = 0
    whole = torch.tensor([0.0, 0.0, 1.0, 0.25])
    asked = F.normalize(torch.ones(384), dim=0)
    tensors = {
        "question": asked.expand(QUESTIONS, -1),
        "concept_prior": torch.zeros(QUESTIONS, 0),
        "meaning": torch.zeros(QUESTIONS, V, 384),
        "evidence": torch.full((QUESTIONS, V, 1), 0.9),
        "concepts": torch.full((QUESTIONS, V, 1), espresso),
        "features": shown[which][:, None] + 0.5 * noise,
        "featured": torch.arange(AT).expand(QUESTIONS, -1),
        "overview": torch.zeros(QUESTIONS, len(names)),
        "saliency": torch.ones(QUESTIONS, V),
        "kept": region_of == 0,
        "region_of": region_of,
        "boxes": F.pad(whole[None], (0, 0, 0, 7)).expand(QUESTIONS, -1, -1),
        "passages": torch.tensor(rows).expand(QUESTIONS, -1),
        "scores": torch.ones(QUESTIONS, len(rows)),
        "relative": torch.ones(QUESTIONS, len(rows)),
        "asked_by": torch.zeros(QUESTIONS, len(rows), dtype=torch.int8),
    }
    passages = tuple(map(library.passage, rows))
    return Records(about, tensors, PassageTable(passages, dict(enumerate(rows)), _not_needed))


def _not_needed() -> Any:
    raise AssertionError


def inputs(context: TrainingContext, variant: Variant = "A") -> QueryInputs:
    rows = context.rows("train", gold=True)
    return region_query.prepare(context, rows, variant, Gains.unknown(context.records))


def test_it_starts_where_names_end(context: TrainingContext) -> None:
    """Recall at step 0 is today's, question by question."""
    new = RegionQueryPart().build(context, settings())
    found = find_gold(context.pipeline, context.records, (new, None))
    assert all(trained == before for trained, before in found)
    assert sum(before for _, before in found) == QUESTIONS / 2  # names cannot tell


def test_the_loss_scores_a_passage_as_retrieval_does(context: TrainingContext) -> None:
    data, records = inputs(context), context.records
    new = RegionQueryPart().build(context, settings())
    state = records.after_retrieve(0, len(context.pipeline.backbone.concepts))
    retrieve: Any = context.pipeline.stages["retrieve"]
    [[found]] = retrieve.querier(state, list(context.pipeline.library.indexes.values())).hits
    assert found
    logits, _ = data.logits(new, [0], [hit.row for hit in found])
    expected = torch.tensor([[hit.score for hit in found]])
    torch.testing.assert_close(logits / SCALE["A"], expected, atol=0.02, rtol=0)


def test_a_record_asks_for_what_the_drafter_thought_of(context: TrainingContext) -> None:
    (term,) = context.pipeline.library.indexes["index"].encoder.encode_terms("lungo").terms
    for weight in (0.0, 1.0):
        system = context.pipeline.with_config(retrieve={"draft_weight": weight})
        (asked,) = ask_by_names(system, context.records.only([0]), "A")
        assert (term in asked.names[0].terms) == bool(weight)


def test_a_gradient_reaches_terms_in_and_outside_the_names(
    context: TrainingContext, library: Library
) -> None:
    new = RegionQueryPart().build(context, settings())
    assert isinstance(new, SparseRegionQuery)
    inputs(context).loss(new, [0, 1, 2, 3], 0.0).backward()
    encoder = library.indexes["index"].encoder
    reached = new.to_terms.weight.grad.abs().sum(1)
    for words in ("espresso", "ristretto lungo"):
        terms = torch.from_numpy(encoder.encode_terms(words).terms).long()
        assert len(terms) >= 1
        assert (reached[terms] > 0).all(), words
    for layer in (new.of_features, new.of_evidence, new.of_question):
        assert layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("variant", ["A", "B"])
def test_it_tells_things_apart_that_share_their_names(
    context: TrainingContext, tmp_path: Path, variant: Variant
) -> None:
    """Fifty questions: it learns them, finds what it should on held-out ones, and so it ships."""
    part, own = RegionQueryPart(), settings(variant)
    here = small_world.again(context, tmp_path)
    data = inputs(here, variant)
    model = part.train(here, own, data)
    compared = part.compare(here, own, data, model)
    held_out = compared["held-out"]["pocket-kb"]
    assert held_out["questions"] == 10
    assert held_out["before"][RECALL] == 0.5
    assert held_out["trained"][RECALL] == 1.0  # nothing can be better
    assert compared["unseen"] == {}
    assert part.ships(here, compared) == {"region_query": True}
    found = find_gold(here.pipeline, here.records, (model, None))
    assert all(trained for trained, _ in found)


def test_what_it_ships_by() -> None:
    def group(trained: float, before: float, questions: int = 10) -> dict[str, Any]:
        return {
            "questions": questions,
            "trained": {RECALL: trained},
            "before": {RECALL: before},
        }

    def ships(seen: dict[str, Any], unseen: dict[str, Any]) -> bool:
        compared = {"held-out": seen, "unseen": unseen}
        return RegionQueryPart().ships(None, compared)["region_query"]  # type: ignore[arg-type]

    same, better, worse = group(0.7, 0.7), group(0.8, 0.7), group(0.6, 0.7)
    assert ships({"pocket-kb": same}, {"unseen": same})
    assert ships({"pocket-kb": better}, {})
    assert ships({"pocket-kb": better, "crowded": worse}, {"unseen": better})
    assert not ships({"pocket-kb": better, "crowded": group(0.6, 0.7, 30)}, {"unseen": better})
    assert not ships({"pocket-kb": better}, {"unseen": worse})


def test_nothing_is_trained_on_passages_about_unseen_things(context: TrainingContext) -> None:
    """Neither as a target nor as a passage to stay away from."""
    rows, unknown = context.rows("train", gold=True), Gains.unknown(context.records)
    before = region_query.prepare(context, rows, "A", unknown)
    hidden = f"passages:{THINGS[1]}-{SIDES[0]}"
    after = region_query.prepare(
        replace(context, unseen_passages=frozenset({hidden})), rows, "A", unknown
    )
    row = context.pipeline.library.row_of(hidden)
    assert all(row in targets for targets in before.targets.values())
    for i, targets in after.targets.items():
        assert targets == {k: t for k, t in before.targets[i].items() if k != row}


def test_gains_are_soft_targets(context: TrainingContext) -> None:
    """A passage that is not gold counts by what the reader gains with it."""
    records = context.records
    gains = Gains.unknown(records)
    gains.unread[0] = -1.0
    gains.passage[0, :AT] = torch.tensor([LARGEST, -2.0, 0.0, 0.0])
    gains.passage[0, AT:] = torch.tensor([LARGEST / 2, -3.0, 0.0, LARGEST])
    found = region_query.prepare(context, [0, 1], "A", gains).targets
    assert list(found[0].values()) == [1.0] * AT + [0.5, 0.0, 0.0, 1.0]
    assert list(found[1].values()) == [0.0] * AT + [1.0] * AT


def test_a_dense_query_needs_embeddings(context: TrainingContext, tmp_path: Path) -> None:
    rows = [{"id": "one", "text": "a passage"}]
    tiny_training.write_lines(tmp_path / "rows.jsonl", rows)
    build(tmp_path / "plain", [JsonLines(tmp_path / "rows.jsonl")], LexicalEncoder.default())
    with pytest.raises(UserError, match="the index plain has no embeddings"):
        Library.open([tmp_path / "plain"]).embedding(0)
