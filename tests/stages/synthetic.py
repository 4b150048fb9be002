"""Small made-up values, states and a backbone for stages that need no real network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F

from skipqa.backbones.backbone import Backbone
from skipqa.backbones.concepts import Concept, Concepts
from skipqa.stages.stage import Stage
from skipqa.state import State
from skipqa.trace import StageRecord
from skipqa.types import (
    KeptTokens,
    Passage,
    Question,
    RetrievedPassage,
    Verified,
    VisualTokens,
)

WIDTH = 12


def state(**fields: Any) -> State:
    """A state with these fields filled; its image is never opened."""
    asked = fields.get("question")
    return State("nowhere.png", asked.text if asked else "").add(**fields)


def run(stage: Stage, entering: State) -> tuple[State, StageRecord]:
    """The state that leaves, and what the stage recorded."""
    record = StageRecord("under test")
    return stage(entering, record), record


@dataclass(frozen=True, slots=True)
class OnlyConcepts:
    concepts: Concepts


def naming(concepts: Concepts) -> Backbone:
    """A backbone for a stage that asks it for nothing but the concepts."""
    return cast(Backbone, OnlyConcepts(concepts))


def visual_tokens(grid: int, num_concepts: int, seed: int) -> VisualTokens:
    generator = torch.Generator().manual_seed(seed)
    evidence = torch.randn(grid * grid, num_concepts, generator=generator).mul(3).softmax(-1)
    return VisualTokens(
        features=torch.randn(grid * grid, 6, generator=generator),
        concept_probs=evidence,
        meaning=F.normalize(torch.randn(grid * grid, WIDTH, generator=generator), dim=-1),
        overview=evidence.mean(0),
        grid=grid,
    )


def kept_tokens(grid: int, positions: list[int], seed: int, num_concepts: int = 7) -> KeptTokens:
    generator = torch.Generator().manual_seed(seed + 1)
    saliency = torch.rand(grid * grid, generator=generator)
    return KeptTokens(
        torch.tensor(sorted(positions)), saliency, visual_tokens(grid, num_concepts, seed)
    )


def question(text: str = "how is this drink brewed?", *words: str, seed: int = 0) -> Question:
    generator = torch.Generator().manual_seed(seed + 2)
    states = torch.randn(5, WIDTH, generator=generator)
    return Question(text, F.normalize(states.mean(0), dim=0), words, states)


def concepts(*entries: tuple[str, tuple[str, ...]], seed: int = 0) -> Concepts:
    """Each entry is a name and the kinds it belongs to."""
    generator = torch.Generator().manual_seed(seed + 3)
    return Concepts(
        tuple(
            Concept(f"n{i:08}", (name,), f"a {name}", tuple((kind,) for kind in kinds))
            for i, (name, kinds) in enumerate(entries)
        ),
        F.normalize(torch.randn(len(entries), WIDTH, generator=generator), dim=-1),
    )


def retrieved_passage(
    row: int, text: str = "", region: int = 0, score: float = 1.0, best: float = 1.0
) -> RetrievedPassage:
    passage = Passage(f"test:{row}", f"title {row}", text or f"text {row}", "test")
    return RetrievedPassage(row, passage, score, region, max(score, 1e-6) / best)


def verified(lengths: list[int], seed: int) -> Verified:
    """Passages of so many words each, with states and scores drawn by the seed."""
    generator = torch.Generator().manual_seed(seed + 4)
    states = tuple(torch.randn(length, WIDTH, generator=generator) for length in lengths)
    scores = torch.rand(len(lengths), generator=generator).add(0.1).tolist()
    embeddings = torch.randn(len(lengths), WIDTH, generator=generator)
    return Verified(
        passages=tuple(retrieved_passage(row) for row in range(len(lengths))),
        scores=tuple(scores),
        token_states=states,
        embeddings=F.normalize(embeddings, dim=-1),
        rejected=(),
    )
