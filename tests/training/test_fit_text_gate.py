"""The heads of the text gate learn what is to be learned, and their thresholds follow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from skipqa.components import Components, load, save
from skipqa.config import Config, ReadTextConfig
from skipqa.nn.text_gate import TextGateConfig, TextGateHeads, question_flops, token_flops
from skipqa.stages.text_gate import TrainedGate
from skipqa.training.run import Run
from skipqa.training.text_gate import (
    RENDERED,
    Asked,
    GateTraining,
    TextGateSettings,
    View,
    chosen,
    crops_of,
    train,
)
from skipqa.types import Box

GRID, WIDTH = 8, 6
SETTINGS = TextGateSettings(train=GateTraining(steps=300, lr=0.05))


def view(box: Box, held_out: bool) -> View:
    """A grey image, striped where the text is."""
    picture = Image.new("RGB", (256, 256), "grey")
    left, top, right, bottom = (round(256 * side) for side in box)
    for x in range(left, right, 4):
        picture.paste("white", (x, top, x + 2, bottom))
    return View(picture, GRID, (box,), held_out)


def questions() -> Asked:
    """Three kinds that differ in two directions: plain, knowledge, written."""
    kinds = torch.arange(3).repeat(40)
    embeddings = torch.randn(120, WIDTH, generator=torch.Generator().manual_seed(0)) * 0.1
    embeddings[:, 0] += (kinds > 0).float()
    embeddings[:, 1] += (kinds == 2).float()
    held_out = torch.arange(120) % 4 == 0
    return Asked(embeddings, kinds > 0, kinds == 2, held_out, (RENDERED,) * 120)


@pytest.fixture(scope="module")
def seen() -> list[View]:
    boxes = [(0.1, 0.1, 0.5, 0.2), (0.5, 0.6, 0.9, 0.7), (0.3, 0.8, 0.6, 0.9)]
    return [view(box, n >= 2) for n, box in enumerate(boxes)]


@pytest.fixture(scope="module")
def heads(seen: list[View], tmp_path_factory: pytest.TempPathFactory) -> TextGateHeads:
    return train(questions(), seen, SETTINGS.train, Run(tmp_path_factory.mktemp("run")))


def test_heads_tell_questions_and_tokens_apart(heads: TextGateHeads, seen: list[View]) -> None:
    found = chosen(heads, questions(), seen, Config(), SETTINGS)
    assert found["opens"][f"{RENDERED}, text"] >= SETTINGS.asked
    assert found["opens"][f"{RENDERED}, other"] == 0
    assert found["written"] == 1
    assert found["crops"]["trained"]["covered"] == 1
    assert found["crops"]["trained"]["area"] < 0.5
    assert isinstance(found["ships"], bool)
    assert found["crops"]["trained"]["area"] < 0.5


def test_a_crop_that_cuts_a_text_does_not_count(heads: TextGateHeads, seen: list[View]) -> None:
    gate, config = TrainedGate(heads, ReadTextConfig()), ReadTextConfig(margin=0.0)
    assert crops_of(gate, seen, config, 1.0)["covered"] == 0
    everything = crops_of(gate, seen, config, 0.0)
    assert (everything["covered"], everything["area"]) == (1, 1)


def test_the_component_is_a_file_of_a_few_kilobytes(tmp_path: Path) -> None:
    heads = TextGateHeads(TextGateConfig(384))
    save(Components(text_gate=heads), tmp_path, preset="pocket")
    read = load(tmp_path, preset="pocket").text_gate
    assert read is not None
    question = torch.randn(384)
    assert torch.equal(read.asks_logits(question), heads.asks_logits(question))
    assert question_flops(heads.config) == 4 * 384
    assert token_flops(heads.config, 64) == 2 * 64 * 6
