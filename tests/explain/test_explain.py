"""The trace as a picture and as a page, for both routes."""

from __future__ import annotations

import html.parser
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from skipqa.errors import UserError
from skipqa.explain import check_format, draw
from skipqa.explain.overlay import DIMMED, overlay, region_colour
from skipqa.explain.page import render
from skipqa.explain.picture import MARGIN, PHOTO_WIDTH, SIDE_WIDTH
from skipqa.explain.picture import draw as draw_picture
from skipqa.pipeline import Answer, Pipeline
from skipqa.state import State
from skipqa.trace import Trace
from skipqa.types import Decoded, Passage

MARKUP = """<script>alert("x")</script> & $question"""


class Elements(html.parser.HTMLParser):
    """The tags of a page, and what would be shown as text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(params=["full", "draft"])
def answer(request: pytest.FixtureRequest) -> Answer:
    found: Answer = request.getfixturevalue("looked_up" if request.param == "full" else "drafted")
    assert found.route == request.param
    return found


def test_png(pipeline: Pipeline, photo: Path, answer: Answer, tmp_path: Path) -> None:
    draw(answer, pipeline.backbone.concepts, tmp_path / "trace.PNG")
    with Image.open(tmp_path / "trace.PNG") as image:
        assert image.format == "PNG"
        assert image.width == PHOTO_WIDTH + SIDE_WIDTH + 3 * MARGIN
        with Image.open(photo) as original:
            photo_height = PHOTO_WIDTH * original.height // original.width
        assert photo_height + 2 * MARGIN < image.height < 3 * photo_height
        pixels = np.asarray(image.convert("L"))
    assert (pixels[:, -MARGIN // 2 :] == 255).all()
    assert (pixels[MARGIN:, PHOTO_WIDTH + 2 * MARGIN :] < 128).any(), "the side has text"


def test_html(pipeline: Pipeline, answer: Answer, tmp_path: Path) -> None:
    draw(answer, pipeline.backbone.concepts, tmp_path / "trace.html")
    page = (tmp_path / "trace.html").read_text(encoding="utf-8")
    shown = Elements(page)
    assert answer.state.text in shown.text
    assert answer.text in shown.text
    assert "script" not in shown.tags
    assert page.count("data:image/jpeg;base64,") == 1
    assert "http" not in page, "the page stands alone"
    for stage in answer.trace.stages:
        assert stage.name in shown.text
    for evidence in answer.evidence:
        assert evidence.text in shown.text
        assert evidence.id in shown.text


def about(answer: Answer, image: Image.Image, question: str) -> Answer:
    """The same answer, as if it were to another question about another image."""
    fields = {**vars(answer.state), "text": question, "image": image}
    return replace(answer, state=State(**fields))


def test_markup_in_question_and_passages_stays_text(pipeline: Pipeline, looked_up: Answer) -> None:
    verified = looked_up.state.verified
    hostile = replace(verified.passages[0], passage=Passage(MARKUP, MARKUP, MARKUP, "test"))
    state = about(looked_up, looked_up.state.image, MARKUP).state.add(
        verified=replace(verified, passages=(hostile, *verified.passages[1:])),
        answer=Decoded(MARKUP),
    )
    records = [
        replace(record, why=MARKUP) if record.name == "prune" else record
        for record in looked_up.trace.stages
    ]
    page = render(Answer(state, "full", Trace(records)), pipeline.backbone.concepts)
    shown = Elements(page)
    assert "script" not in shown.tags
    # in the title, the heading, the answer, three times in the passage and in the stage's reason
    assert shown.text.count(MARKUP) == 7


def test_kept_patches_are_bright_in_their_colour_and_dropped_ones_dim(looked_up: Answer) -> None:
    side, grey, grid = 720, 200, 16
    patch = side // grid
    flat = Image.new("RGB", (300, 300), (grey,) * 3)
    drawn = np.asarray(overlay(looked_up.state.add(image=flat), side))
    owner = {
        member: number
        for number, region in enumerate(looked_up.state.regions)
        for member in region.members
    }
    assert len(owner) == 29
    for position in range(grid * grid):
        row, column = divmod(position, grid)
        # Away from the borders of boxes and from the numbers in their corners.
        pixel = drawn[row * patch + patch - 6, column * patch + patch - 6].astype(int)
        if position in owner:
            expected = 0.8 * grey + 0.2 * np.array(region_colour(owner[position]))
        else:
            expected = np.full(3, DIMMED * grey)
        assert np.abs(pixel - expected).max() <= 1


def test_drafted_answers_leave_the_photo_alone(drafted: Answer) -> None:
    drawn = overlay(drafted.state.add(image=Image.new("RGB", (60, 30), (9, 8, 7))), 120)
    assert drawn.size == (120, 60)
    assert drawn.getcolors() == [(120 * 60, (9, 8, 7))]


def test_a_tall_photo_is_scaled_to_fit(pipeline: Pipeline, looked_up: Answer) -> None:
    """1 to 20: drawn to the full width it would be eleven thousand pixels high."""
    tall = Image.new("RGB", (50, 1_000), (90, 60, 30))
    answer, concepts = about(looked_up, tall, "Why so tall?"), pipeline.backbone.concepts
    assert draw_picture(answer, concepts).height < 4_000
    assert len(render(answer, concepts)) < 1_000_000


def test_a_flat_photo_still_shows(pipeline: Pipeline, looked_up: Answer) -> None:
    flat = Image.new("RGB", (4_000, 3), (90, 60, 30))
    answer = about(looked_up, flat, "Why so flat?")
    image = draw_picture(answer, pipeline.backbone.concepts)
    assert image.width == PHOTO_WIDTH + SIDE_WIDTH + 3 * MARGIN


@pytest.mark.parametrize("question", ["これは何？ " * 20, "why " * 200, "naïve “quotes” 🍵"])
def test_any_question_can_be_drawn(pipeline: Pipeline, drafted: Answer, question: str) -> None:
    answer = about(drafted, Image.new("RGB", (50, 50)), question)
    draw_picture(answer, pipeline.backbone.concepts)


@pytest.mark.parametrize("name", ["trace.gif", "trace", "png"])
def test_wrong_ending(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"should end in \.png or \.html"):
        check_format(tmp_path / name)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        check_format(tmp_path / "none" / "trace.png")
