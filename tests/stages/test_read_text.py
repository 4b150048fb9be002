"""What is read: kept tokens that look like text, whole words, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from synthetic import kept_tokens, question, run, state

from skipqa.backbones import text_reader
from skipqa.backbones.text_reader import CELL, LinesRead
from skipqa.config import ReadTextConfig, RegionsConfig
from skipqa.stages.prune import Prune
from skipqa.stages.read_text import ReadTextInImage, assigned, crops_around, in_image, whole
from skipqa.stages.regions import ClusterProposer, FindRegions
from skipqa.stages.text_gate import RuleGate
from skipqa.state import State
from skipqa.types import Budget, KeptTokens, Question, TextLine, VisualTokens

IMAGE = Image.new("RGB", (640, 480))
CONFIG = ReadTextConfig()


class Engine:
    """Finds one line in the middle of whatever it is shown, and remembers how large that was."""

    def __init__(self, score: float = 0.9) -> None:
        self.shown: list[tuple[int, int]] = []
        self.score = score

    def __call__(self, image: Image.Image) -> LinesRead:
        self.shown.append(image.size)
        return LinesRead((TextLine("SOFIA", (0.4, 0.4, 0.6, 0.6), self.score),), 1_000)


def seen(likeness: dict[int, float] | None, positions: tuple[int, ...]) -> State:
    """A state up to the regions; `likeness` of some of its 64 tokens."""
    kept = kept_tokens(8, list(positions), seed=3)
    likeness_V = None
    if likeness is not None:
        likeness_V = torch.zeros(len(kept.tokens))
        for place, value in likeness.items():
            likeness_V[place] = value
    kept = replace(kept, text_likeness=likeness_V)
    entering = state(image=IMAGE, kept=kept, question=question())
    return run(FindRegions(RegionsConfig(), ClusterProposer()), entering)[0]


@pytest.mark.parametrize(
    ("likeness", "why"),
    [
        (None, "the question asks for no text"),
        ({}, "nothing that was kept looks like text"),
        ({40: 0.9}, "nothing that was kept looks like text"),
        ({3: CONFIG.min_likeness - 0.01}, "nothing that was kept looks like text"),
    ],
)
def test_a_closed_gate_reads_nothing(likeness: dict[int, float] | None, why: str) -> None:
    engine = Engine()
    after, record = run(ReadTextInImage(CONFIG, engine), seen(likeness, (1, 2, 3, 9)))
    assert engine.shown == []
    assert after.read_text.lines == ()
    assert after.read_text.crops == ()
    assert (record.flops, record.why) == (0, why)


def test_without_an_engine_the_trace_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = ReadTextInImage(CONFIG, None)
    monkeypatch.setattr(text_reader, "installed", lambda: False)
    after, record = run(stage, seen({3: 0.9}, (3,)))
    assert after.read_text.lines == ()
    assert "pip install 'skipqa[ocr]'" in record.why
    monkeypatch.setattr(text_reader, "installed", lambda: True)
    assert "pip" not in run(stage, seen({3: 0.9}, (3,)))[1].why, "it is switched off"


def test_kept_tokens_that_look_like_text_are_read_in_native_pixels() -> None:
    engine = Engine()
    before = seen({3: 0.9, 4: 0.8, 60: 0.9}, (1, 2, 3, 4, 9, 60))
    after, record = run(ReadTextInImage(CONFIG, engine), before)
    assert len(engine.shown) == 2, "two neighbours are one crop, a far one another"
    assert all(width < IMAGE.width and height < IMAGE.height for width, height in engine.shown)
    assert record.flops == 2_000
    first, second = after.read_text.lines
    assert first.box[1] < second.box[1]
    assert 3 in before.regions[first.region].members or 4 in before.regions[first.region].members
    assert 60 in before.regions[second.region].members
    assert "'SOFIA'" in record.why


def test_a_word_goes_on_where_the_budget_ended() -> None:
    """Neighbours that look like text are read with a kept token; others are not."""
    engine = Engine()
    run(ReadTextInImage(CONFIG, engine), seen(dict.fromkeys((3, 4, 5, 60), 0.9), (3,)))
    ((width, height),) = engine.shown
    assert width >= 3 * IMAGE.width // 8
    assert height < IMAGE.height // 2


@pytest.mark.parametrize("written", [False, True])
def test_what_is_written_needs_no_passage(written: bool) -> None:
    before = seen({3: 0.9}, (3,)).add(budget=Budget(4, 6))
    before = before.add(question=replace(question(), asks_what_is_written=written))
    after, record = run(ReadTextInImage(CONFIG, Engine()), before)
    assert after.budget.passages == (0 if written else 6)
    assert ("nothing is looked up" in record.why) == written


def test_everything_kept_and_open_is_the_whole_picture() -> None:
    engine = Engine()
    everything = tuple(range(64))
    run(ReadTextInImage(CONFIG, engine), seen(dict.fromkeys(everything, 1.0), everything))
    assert engine.shown == [IMAGE.size]


def test_an_uncertain_line_is_dropped() -> None:
    stage = ReadTextInImage(CONFIG, Engine(score=CONFIG.min_score - 0.01))
    after, record = run(stage, seen({3: 0.9}, (3,)))
    assert after.read_text.lines == ()
    assert len(after.read_text.crops) == 1, "it was looked for"
    assert "nothing in 1 crops" in record.why


@given(
    st.sets(st.integers(0, 63), max_size=12),
    st.integers(1, 900),
    st.integers(1, 900),
    st.floats(0, 2),
)
def test_crops_hold_their_cells_and_lie_inside_the_image(
    cells: set[int], width: int, height: int, margin: float
) -> None:
    crops = crops_around(cells, 8, (width, height), margin)
    assert bool(crops) == bool(cells)
    for left, top, right, bottom in crops:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        assert (right - left) % CELL == 0 or right - left == width
        assert (bottom - top) % CELL == 0 or bottom - top == height
    for cell in cells:
        x, y = (cell % 8 + 0.5) / 8 * width, (cell // 8 + 0.5) / 8 * height
        assert sum(c[0] <= x <= c[2] and c[1] <= y <= c[3] for c in crops) >= 1
    for n, one in enumerate(crops):
        for other in crops[n + 1 :]:
            apart = one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3]
            assert apart or other[1] >= one[3]


def test_a_box_in_a_crop_becomes_one_in_the_image() -> None:
    line = in_image(TextLine("A", (0.0, 0.5, 1.0, 1.0), 1.0), (32, 64, 96, 128), (128, 256))
    assert line.box == (0.25, 0.375, 0.75, 0.5)
    assert in_image(line, whole(IMAGE), IMAGE.size).box == pytest.approx(line.box)


def test_a_line_belongs_to_the_nearest_region() -> None:
    regions = seen({}, (0, 1, 8, 9, 54, 55, 62, 63)).regions
    line = TextLine("A", (0.9, 0.9, 0.97, 0.97), 1.0)
    assert 63 in regions[assigned(line, regions, 8).region].members
    assert assigned(line, (), 8).region is None


class Even:
    """All tokens alike."""

    def __call__(self, tokens: VisualTokens, question: Question) -> tuple[torch.Tensor, int]:
        return torch.full((len(tokens),), 0.5), 7

    def why(self, question: Question) -> str:
        return "alike"


@pytest.mark.parametrize("asks", [False, True])
def test_prune_keeps_what_looks_like_text_where_the_question_asks(
    asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = kept_tokens(8, [0], seed=3).tokens
    likeness_V = torch.zeros(64)
    likeness_V[[40, 41]] = 0.8
    monkeypatch.setattr(RuleGate, "likeness", lambda self, image, grid: (likeness_V, 5))
    entering = state(
        image=IMAGE,
        question=replace(question(), asks_for_text=asks),
        tokens=tokens,
        budget=Budget(2, 6),
    )
    after, record = run(Prune(Even(), RuleGate()), entering)
    plain, _ = run(Prune(Even()), entering)
    assert after.kept.positions.tolist() == ([40, 41] if asks else [0, 1])
    assert record.flops == (12 if asks else 7)
    if not asks:
        assert after.kept.text_likeness is None
        assert torch.equal(after.kept.saliency, plain.kept.saliency)
        assert isinstance(plain.kept, KeptTokens)
