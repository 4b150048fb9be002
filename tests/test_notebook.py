"""An answer in a notebook: complete, escaped, standing alone."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from skipqa.answer import Answer
from skipqa.notebook import COLOURS, DIMMED, MAX_HEIGHT, PHOTO_WIDTH, html, thumbnail

MARKUP = """<script>alert("x")</script>' onload='x' & --> </div><img src=x> $x$"""
PHOTO = thumbnail(Image.new("RGB", (64, 48), (200, 120, 40)))
TAGS = set("div svg image path rect text span table tr td b details summary".split())


def passage(number: int, verdict: str, text: str) -> dict[str, Any]:
    return {
        "number": number,
        "id": text,
        "title": text,
        "text": text,
        "read": text,
        "source": text,
        "index": text,
        "region": 0,
        "score": 12.345,
        "relative": 1.0,
        "verification": 0.97,
        "verdict": verdict,
        "reason": text,
        "attention": 0.61,
        "cited": verdict == "kept",
    }


def outline(text: str = "plain") -> dict[str, Any]:
    """With `text` wherever an outline has any."""
    concept = {"name": text, "prob": 0.93}
    stage = {"name": text, "flops": 1_744_000_000, "kept": 64, "dropped": 0, "why": text}
    return {
        "question": text,
        "answer": text,
        "route": "full",
        "system": "skip",
        "confidence": 0.42,
        "grounded": True,
        "certainty": text,
        "asked_as": text,
        "image": {"width": 640, "height": 480},
        "indexes": [text],
        "draft": {"answer": text, "confidence": 0.21, "threshold": 0.32, "accepted": False},
        "tokens": {"grid": 4, "total": 16, "kept": [0, 1, 5, 6, 15], "saliency": []},
        "regions": [
            {"box": [0, 0, 0.75, 0.5], "tokens": [0, 1, 5, 6], "concepts": [concept] * 2},
            {"box": [0.75, 0.75, 1, 1], "tokens": [15], "concepts": [concept]},
        ],
        "passages": [
            passage(1, "kept", text),
            passage(2, "rejected", text),
            passage(3, "rejected", text),
        ],
        "edges": [],
        "stages": [{**stage, "ms": 61.2}, {**stage, "ms": 30.6, "kept": None}],
        "flops": 21_000_000_000,
        "latency_ms": 612.3,
        "dense": {"flops": 112_657_000_000, "stages": []},
    }


class Elements(HTMLParser):
    """The elements of a fragment with their attributes, and what is shown as text."""

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.others: list[str] = []
        self.feed(fragment)
        self.close()

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def attributes(self) -> list[tuple[str, str | None]]:
        return [attribute for _, attributes in self.elements for attribute in attributes]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        assert self.open, "nothing stands outside the one element"
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.others.append(data)

    handle_decl = handle_pi = unknown_decl = handle_comment  # type: ignore[assignment]


def test_all_that_happened_is_shown() -> None:
    said = outline()
    said |= {"question": "How is this brewed?", "answer": "under pressure"}
    said |= {"certainty": "42% sure; a passage says so", "asked_as": "How is espresso brewed?"}
    said["regions"][0]["concepts"][0]["name"] = "espresso"
    said["passages"][0] |= {"title": "Espresso", "text": "Hot water is forced through it."}
    said["passages"][1] |= {"title": "Tea", "text": "Leaves in hot water.", "reason": "below 0.50"}
    said["stages"][0] |= {"name": "encode", "why": "both resolutions"}
    shown = Elements(html(said, PHOTO)).text
    for text in (
        *("How is this brewed?", "under pressure", "42% sure; a passage says so"),
        *("“How is espresso brewed?”", "21% sure where 32% is required", "espresso 0.93"),
        *(
            "Espresso",
            "Hot water is forced through it.",
            "kept, 0.97, read",
            "61% of the attention",
        ),
        *("2 rejected", "Tea", "Leaves in hot water.", "below 0.50", "retrieval score 12.35"),
        *("encode", "61 ms", "1.74 GFLOPs", "64 kept, 0 dropped", "both resolutions"),
        "612 ms, 21.00 GFLOPs; the dense baseline: 112.66 GFLOPs",
    ):
        assert text in shown


def test_a_draft_says_so() -> None:
    said = outline()
    said |= {"route": "draft", "regions": [], "passages": []}
    said["tokens"] = {"grid": 8, "total": 64, "kept": [], "saliency": []}
    shown = Elements(html(said, PHOTO))
    assert "answered by the drafter" in shown.text
    assert "table" in {tag for tag, _ in shown.elements}, "what it cost"
    drawn = {tag for tag, _ in shown.elements} & {"image", "path", "rect"}
    assert drawn == {"image"}, "nothing is dimmed"


def squares(shape: str, grid: int, height: float) -> set[int]:
    """The positions that a drawn path covers."""
    cell = (PHOTO_WIDTH / grid, height / grid)
    found = set()
    for left, top, across, down in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)H", shape):
        assert float(down) == pytest.approx(cell[1], abs=0.01)
        row, first = round(float(top) / cell[1]), round(float(left) / cell[0])
        found |= {row * grid + first + n for n in range(round(float(across) / cell[0]))}
    return found


def test_kept_patches_are_bright_in_their_colour_and_dropped_ones_dim() -> None:
    height = PHOTO_WIDTH * 480 / 640
    shown = Elements(html(outline(), PHOTO))
    paths = [dict(attributes) for tag, attributes in shown.elements if tag == "path"]
    dimmed, *tinted = ((path["fill"], squares(path["d"] or "", 4, height)) for path in paths)
    assert dimmed == ("#000", set(range(16)) - {0, 1, 5, 6, 15})
    assert float(paths[0]["fill-opacity"] or 0) == pytest.approx(1 - DIMMED)
    colours = list(COLOURS[:2])
    assert tinted == [(colours[0], {0, 1, 5, 6}), (colours[1], {15})]
    boxes = [dict(attributes) for tag, attributes in shown.elements if tag == "rect"]
    outlines = [box for box in boxes if box["fill"] == "none"]
    assert [box["stroke"] for box in outlines] == colours[::-1], "the most salient on top"
    assert float(outlines[1]["width"] or 0) == pytest.approx(0.75 * PHOTO_WIDTH)
    assert float(outlines[1]["height"] or 0) == pytest.approx(0.5 * height)


def test_an_answer_shows_itself(looked_up: Answer) -> None:
    shown = looked_up._repr_html_()
    assert looked_up.text in shown
    assert "data:image/jpeg;base64," in shown


def test_it_stands_alone() -> None:
    shown = Elements(html(outline(), PHOTO))
    assert {tag for tag, _ in shown.elements} == TAGS
    assert shown.elements[0][0] == "div"
    assert not shown.open, "every element is closed"
    links = [value for name, value in shown.attributes if name in ("href", "src", "xlink:href")]
    assert links == [PHOTO]
    for name, value in shown.attributes:
        assert not name.startswith("on")
        assert "url(" not in (value or "")


def test_it_takes_the_colours_of_the_page_around_it() -> None:
    """No colour of its own for text on the page, so that light and dark pages can both be read."""
    shown = Elements(html(outline(), PHOTO))
    styles = [value or "" for name, value in shown.attributes if name == "style"]
    for style in styles:
        if re.search(r"(?:^|;)color:(?!inherit)", style):
            assert "background:#" in style, "a chip brings both"


def test_formulas_are_not_looked_for() -> None:
    """Notebooks would set what stands between two dollar signs as a formula."""
    _, attributes = Elements(html(outline("$5 or $6"), None)).elements[0]
    assert dict(attributes)["class"] == "tex2jax_ignore mathjax_ignore"


PLAIN = Elements(html(outline("plain"), PHOTO))
TEXTS = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="<>&\"'/=-! \t\r\n;:#x0dscriptonload", max_size=40),
    st.sampled_from([MARKUP, "&lt;b&gt;", "&#60;", "]]>", "<!--", "\x00<b>", "</style>", "\u202e"]),
)


@given(TEXTS.filter(str.strip))
def test_no_text_can_make_an_element_or_an_attribute(text: str) -> None:
    """The elements and attributes are the same for any text, wherever it stands."""
    shown = Elements(html(outline(text), PHOTO))
    assert shown.elements == PLAIN.elements
    assert not shown.others
    assert not shown.open


@given(TEXTS.filter(lambda text: text.strip() and not set(text) & set("\r\x00")))
def test_every_text_is_shown_as_it_is(text: str) -> None:
    shown = Elements(html(outline(text), None))
    # the question, the answer and three passages each with title and text, at least
    assert sum(text in one for one in shown.texts) >= 8


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
PLACES = [
    *(("question",), ("answer",), ("route",), ("certainty",), ("draft",), ("image",), ("tokens",)),
    *(("image", "width"), ("image", "height"), ("tokens", "grid"), ("tokens", "kept")),
    *(("regions",), ("regions", 0), ("regions", 0, "box"), ("regions", 0, "box", 2)),
    *(("regions", 0, "tokens"), ("regions", 0, "tokens", 1), ("regions", 0, "concepts")),
    *(("regions", 0, "concepts", 0), ("regions", 0, "concepts", 0, "prob"), ("passages",)),
    *(("passages", 0), ("passages", 0, "number"), ("passages", 0, "region")),
    *(("passages", 0, "score"), ("passages", 0, "attention"), ("passages", 0, "verdict")),
    *(("passages", 0, "cited"), ("stages",), ("stages", 0), ("stages", 0, "ms")),
    *(("stages", 0, "kept"), ("stages", 0, "flops"), ("flops",), ("latency_ms",), ("dense",)),
    ("dense", "flops"),
]


@given(st.sampled_from(PLACES), JSON)
def test_nothing_else_in_any_place_can_either(place: tuple[Any, ...], value: Any) -> None:
    said = outline()
    *way, last = place
    inner: Any = said
    for step in way:
        inner = inner[step]
    inner[last] = value
    shown = Elements(html(said, PHOTO))
    assert {tag for tag, _ in shown.elements} <= TAGS
    assert not shown.others
    known = {name for name, _ in PLAIN.attributes} | {"open"}
    for name, attribute in shown.attributes:
        assert name in known
        if name not in ("href", "class", "role", "aria-label"):
            assert re.fullmatch(r"[\w\s.,:;#()%-]*", attribute or "")


@given(st.dictionaries(st.sampled_from(sorted(outline())), JSON))
def test_an_outline_of_anything_can_be_shown(said: dict[str, Any]) -> None:
    assert {tag for tag, _ in Elements(html(said, PHOTO)).elements} <= TAGS


@pytest.mark.parametrize("number", [10**400, -(10**400), float("nan"), float("inf"), True])
def test_numbers_beyond_all_bounds(number: float) -> None:
    said = outline()
    said |= {"flops": number, "latency_ms": number, "image": {"width": number, "height": number}}
    said["passages"][0] |= {"number": number, "region": number, "score": number}
    said["stages"][0] |= {"ms": number, "kept": number}
    assert len(html(said, PHOTO)) < 20_000


@pytest.mark.parametrize(
    "photo",
    [
        *("", "photo.jpg", "http://host/photo.jpg", "javascript:alert(1)", PHOTO + '" onload="x'),
        *("data:text/html;base64,PGI+", "data:image/svg+xml;base64,PHN2Zz4=", PHOTO + "\n", None),
    ],
)
def test_what_is_no_picture_is_not_drawn(photo: str | None) -> None:
    shown = Elements(html(outline(), photo))
    assert "svg" not in {tag for tag, _ in shown.elements}
    assert "612 ms" in shown.text


def test_a_question_without_a_photo_has_no_picture() -> None:
    assert "<svg" not in html({**outline(), "image": None}, PHOTO)


@pytest.mark.parametrize("size", [(4_000, 3_000), (50, 1_000), (4_000, 3), (30, 20)])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_a_thumbnail_is_small(size: tuple[int, int], mode: str) -> None:
    kind, _, data = thumbnail(Image.new(mode, size)).partition(",")
    assert kind == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as small:
        assert small.width <= PHOTO_WIDTH
        assert small.height <= MAX_HEIGHT
        if max(size) <= PHOTO_WIDTH:
            assert small.size == size
