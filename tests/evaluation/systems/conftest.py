"""One photo and one question for every system, and small made-up tokens for the stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from skipqa.evaluation import systems
from skipqa.evaluation.systems import Variant
from skipqa.knowledge import Library
from skipqa.pipeline import Answer, Pipeline
from skipqa.types import Question, VisualTokens

QUESTION = "Where does this come from?"
WIDTH, GRID, CONCEPTS = 12, 6, 7


def in_brief(pipeline: Pipeline) -> Pipeline:
    """With two of its corpora, whose passages are short: a dense system reads sixteen, whole."""
    indexes = {name: pipeline.library.indexes[name] for name in ("wordnet", "factbook")}
    return Pipeline(replace(pipeline.parts, library=Library(indexes)))


@pytest.fixture(scope="session")
def brief(pipeline: Pipeline) -> Pipeline:
    return in_brief(pipeline)


@pytest.fixture(scope="session")
def trained_brief(trained_pipeline: Pipeline) -> Pipeline:
    return in_brief(trained_pipeline)


@pytest.fixture(scope="session")
def ask(
    brief: Pipeline, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Variant | str], Answer]:
    """Each system is asked once, about a photo of nothing in particular."""
    photo: Path = tmp_path_factory.mktemp("photos") / "a.png"
    picture = Image.new("RGB", (48, 48), (200, 120, 40))
    picture.paste((255, 255, 255), (8, 8, 24, 30))
    picture.save(photo)
    known: dict[Variant | str, Answer] = {}

    def call(variant: Variant | str) -> Answer:
        if variant not in known:
            known[variant] = systems.build(variant, brief).answer(photo, QUESTION)
        return known[variant]

    return call


@pytest.fixture
def tokens() -> VisualTokens:
    torch.manual_seed(0)
    evidence = torch.randn(GRID * GRID, CONCEPTS).mul(3).softmax(-1)
    meaning = F.normalize(torch.randn(GRID * GRID, WIDTH), dim=-1)
    return VisualTokens(torch.randn(GRID * GRID, 10), evidence, meaning, evidence.mean(0), GRID)


@pytest.fixture
def questions() -> tuple[Question, Question]:
    """Two that differ."""
    torch.manual_seed(1)

    def made(text: str) -> Question:
        states = torch.randn(5, WIDTH)
        return Question(text, F.normalize(states.mean(0), dim=0), (), states)

    return made("one?"), made("other?")
