"""When the gate opens: words of a question, strokes in a cell, trained heads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont
from synthetic import WIDTH, question, state, visual_tokens

from skipqa.backbones import text_reader
from skipqa.config import Config, ReadTextConfig
from skipqa.nn.text_gate import TextGateConfig, TextGateHeads
from skipqa.stages.text_gate import (
    RuleGate,
    TrainedGate,
    asked_likeness,
    build,
    shows_text,
    strokes,
)
from skipqa.types import Question

TOKENS = visual_tokens(8, 5, seed=0)
NOWHERE = torch.zeros(WIDTH)


def asking(for_text: bool) -> Question:
    from dataclasses import replace

    return replace(question(), asks_for_text=for_text)


def lettered(side: int = 320) -> Image.Image:
    """Text in the top left quarter of a plain image."""
    picture = Image.new("RGB", (side, side), (120, 140, 90))
    font = ImageFont.load_default(side // 12)
    ImageDraw.Draw(picture).text((side // 20, side // 12), "MILLIE", fill="white", font=font)
    return picture


@pytest.mark.parametrize(
    ("text", "for_text", "what_is_written"),
    [
        ("What does the sign say?", True, True),
        ("What is written on the jar?", True, True),
        ("In which country is the city named on the bus?", True, False),
        ("What brand is this?", True, False),
        ("Is there a dog in the picture?", False, False),
        ("What color is the cat?", False, False),
    ],
)
def test_the_rule_goes_by_words(text: str, for_text: bool, what_is_written: bool) -> None:
    asks = RuleGate().asks(text, NOWHERE)
    assert (asks.for_text, asks.what_is_written) == (for_text, what_is_written)


def test_strokes_are_found_where_the_letters_are() -> None:
    likeness_V, _ = RuleGate().likeness(lettered(), 8)
    assert len(likeness_V) == 64
    grid = likeness_V.reshape(8, 8)
    assert grid[:3, :4].max() > 2 * grid[4:].max()
    assert bool(((likeness_V >= 0) & (likeness_V <= 1)).all())


@pytest.mark.parametrize("letters", [16, 32, 64])
def test_letters_of_all_sizes_look_like_text(letters: int) -> None:
    picture = Image.new("RGB", (640, 640), "white")
    font = ImageFont.load_default(letters)
    ImageDraw.Draw(picture).text((40, 40), "MINIMUM", fill="black", font=font)
    likeness_V, _ = RuleGate().likeness(picture, 16)
    assert float(likeness_V.max()) > 0.5


@given(st.sampled_from((1, 7, 8, 16, 24)), st.integers(0, 255))
def test_nothing_is_written_on_one_colour(grid: int, grey: int) -> None:
    strokes_VS, flops = strokes(Image.new("L", (40, 30), grey), grid)
    assert strokes_VS.shape == (grid * grid, 6)
    assert not strokes_VS.any()
    assert flops > 0


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (900, 1)])
def test_the_rule_takes_any_image(size: tuple[int, int]) -> None:
    likeness_V, _ = RuleGate().likeness(Image.new("RGB", size), 8)
    assert likeness_V.tolist() == [0.0] * 64


def trained(bias: float, min_question_prob: float = 0.5) -> TrainedGate:
    heads = TextGateHeads(TextGateConfig(WIDTH))
    for parameter in heads.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        heads.asks.bias[0] = bias
    return TrainedGate(heads, ReadTextConfig(min_question_prob=min_question_prob))


def test_trained_heads_decide_by_probability() -> None:
    assert trained(1.0).asks("anything", NOWHERE).for_text
    assert not trained(-1.0).asks("anything", NOWHERE).for_text
    assert trained(-1.0, min_question_prob=0.1).asks("anything", NOWHERE).for_text
    closed = trained(-1.0).asks("anything", NOWHERE)
    assert not closed.what_is_written, "only a question that asks for text can ask what it says"
    likeness_V, flops = trained(0.0).likeness(lettered(), 8)
    assert likeness_V.tolist() == [0.5] * 64
    assert flops == RuleGate().likeness(lettered(), 8)[1] + 2 * 6 * 64


def test_likeness_is_for_questions_that_ask() -> None:
    gate, image = RuleGate(), lettered()
    seen = state(question=asking(False), image=image, low_res=TOKENS)
    assert asked_likeness(gate, seen, TOKENS) == (None, 0)
    assert not shows_text(gate, seen, 0.0)
    asked = seen.add(question=asking(True))
    assert asked_likeness(None, asked, TOKENS) == (None, 0)
    assert shows_text(gate, asked, 0.3)
    assert not shows_text(gate, asked, 1.0)
    replayed = state(question=asking(True), low_res=TOKENS)
    assert asked_likeness(gate, replayed, TOKENS) == (None, 0), "a replay has no image"


def test_there_is_no_gate_where_nothing_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    parts = SimpleNamespace(config=Config(), components=SimpleNamespace(text_gate=None))
    monkeypatch.setattr(text_reader, "installed", lambda: True)
    assert isinstance(build(parts), RuleGate)  # type: ignore[arg-type]
    off = SimpleNamespace(
        config=Config(read_text=ReadTextConfig(enabled=False)), components=parts.components
    )
    assert build(off) is None  # type: ignore[arg-type]
    monkeypatch.setattr(text_reader, "installed", lambda: False)
    assert build(parts) is None  # type: ignore[arg-type]
